// Autograd of an op, from the gradient expressions of its declaration.
#pragma once

#include <torch/library.h>

#include "cudarelu/op.h"
#include "kernels.h"

namespace cudarelu::binding {

/// The kernel for the Autograd key. Gradients are expressions over ops, evaluated by the
/// dispatcher, hence differentiable themselves; forward mode is their transpose. Floating outputs
/// of an op without a gradient refuse backward(), and its inputs refuse tangents.
torch::CppFunction autograd_kernel(const Op& op, Form form);

/// What that kernel does where an input requires a gradient and the kernel below it is
/// call_kernel().
Tensors call_recorded(const Op& op, Inputs inputs, std::span<const Attribute> attributes);

/// The kernel for the ADInplaceOrView key of an in-place op: it moves the version counter, by which
/// autograd sees that a saved tensor was overwritten.
torch::CppFunction version_kernel(const Op& op);

}  // namespace cudarelu::binding

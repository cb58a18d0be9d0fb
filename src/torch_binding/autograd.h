// Autograd of an op, from the gradient expressions of its declaration.
#pragma once

#include <torch/library.h>

#include <memory>

#include "backend.h"
#include "registered_op.h"

namespace cudarelu::binding {

/// Parses the gradient of an op. Throws std::invalid_argument if it is malformed.
std::shared_ptr<const Derivative> parse_derivative(const Op& op);

/// Returns the kernel for the Autograd key. Gradients are expressions over ops, evaluated by calls
/// of the ops, so they are differentiable themselves; forward mode evaluates their transpose. For
/// an op without a gradient, backward() and tangents of the inputs raise NotImplementedError.
torch::CppFunction autograd_kernel(const Op& op, Form form);

/// Runs an op with an input that requires a gradient, without the dispatcher: as the kernel above
/// with call_kernel() below it.
Tensors call_recorded(const Op& op, Inputs inputs, std::span<const Attribute> attributes);

/// Returns the kernel for the ADInplaceOrView key of an in-place op. It increments the version
/// counter, by which autograd detects that a saved tensor was overwritten.
torch::CppFunction version_kernel(const Op& op);

}  // namespace cudarelu::binding

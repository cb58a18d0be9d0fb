// The dispatcher's kernels of an op: boxed, and the same code for every op.
#pragma once

#include <torch/library.h>

#include "api.h"

namespace cudarelu::binding {

/// The inputs of a call whose arguments are the last on the stack.
InputPointers inputs_of(const Op& op, const torch::jit::Stack& stack);

/// The attributes of such a call.
Attributes attributes_of(const Op& op, const torch::jit::Stack& stack);

/// The outputs of the op, on the CPU or CUDA, without autograd.
Tensors call_kernel(const Op& op, Inputs inputs, std::span<const Attribute> attributes);

enum class Backend { device, meta };
enum class Form { functional, in_place };

/// The kernel that computes (Backend::device, for CPU and CUDA), or that only checks the arguments
/// and makes outputs of the right dtype, sizes and strides (Backend::meta, for symbolic sizes too).
///
/// An elementwise op keeps a dense layout that its inputs share, such as channels_last; every other
/// output is contiguous. Inputs of another layout are copied first, but for transposed matrices of
/// a matrix product.
torch::CppFunction backend_kernel(const Op& op, Backend backend, Form form);

}  // namespace cudarelu::binding

// The boxed kernels for the dispatcher, the same code for every op.
#pragma once

#include <torch/library.h>

#include "api.h"

namespace cudarelu::binding {

/// Returns the inputs of a call whose arguments are on top of the stack.
InputPointers inputs_of(const Op& op, const torch::jit::Stack& stack);

/// Returns the attributes of such a call.
Attributes attributes_of(const Op& op, const torch::jit::Stack& stack);

/// Runs the op on the CPU or CUDA, without autograd, and returns its outputs.
Tensors call_kernel(const Op& op, Inputs inputs, std::span<const Attribute> attributes);

enum class Backend { device, meta };
enum class Form { functional, in_place };

/// Returns the kernel that computes (Backend::device, for CPU and CUDA), or the kernel that only
/// checks the arguments and creates outputs of the right dtype, sizes and strides (Backend::meta,
/// also for symbolic sizes).
///
/// An elementwise op keeps a dense layout that its inputs share, such as channels_last. An op that
/// is strided reads views where they lie, and its outputs are dense in the order of dimensions of
/// an input. All other outputs are contiguous. Inputs of other layouts are copied, except
/// transposed matrices of a matrix product.
torch::CppFunction backend_kernel(const Op& op, Backend backend, Form form);

}  // namespace cudarelu::binding

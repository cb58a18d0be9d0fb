// What libcudarelu_torch.so offers to the Python module beside it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cudarelu/gradient.h"
#include "cudarelu/infer.h"

namespace cudarelu::binding {

/// The table that the ops of torch.ops.cudarelu were registered from.
[[gnu::visibility("default")]] std::span<const Op> registered_ops();

/// The gradient of an op of that table.
[[gnu::visibility("default")]] std::vector<Gradient> gradient_of(const Op& op);

/// Why matrix products on CUDA cannot use cuBLASLt, and the mend; empty where they can.
[[gnu::visibility("default")]] std::string cublaslt_problem();

/// The dispatcher's handle of an op of that table.
[[gnu::visibility("default")]] const c10::OperatorHandle& handle_of(const Op& op);

using Inputs = std::span<const at::Tensor* const>;  // null: an optional input that is absent
using InputPointers = c10::SmallVector<const at::Tensor*, 4>;
using Tensors = c10::SmallVector<at::Tensor, 4>;
using Attributes = c10::SmallVector<Attribute, 4>;

/// The label of an enumeration's value that check_attributes() accepts.
inline std::string_view label_of(const AttributeSpec& spec, const Attribute& value) {
  return spec.labels[static_cast<std::size_t>(std::get<std::int64_t>(value))];
}

/// Sets `value` to the position of a label of an enumeration.
[[gnu::visibility("default")]] Status find_label(const Op& op, const AttributeSpec& spec,
                                                 std::string_view label, Attribute& value);

/// An attribute as PyTorch's schemas have it: an enumeration is a str there, its label.
inline c10::IValue ivalue_of(const AttributeSpec& spec, const Attribute& value) {
  if (!spec.labels.empty()) return std::string(label_of(spec, value));
  return std::visit([](auto number) { return c10::IValue(number); }, value);
}

/// The arguments of a call as the dispatcher has them; it shares the tensors.
[[gnu::visibility("default")]] torch::jit::Stack stack_of(const Op& op, Inputs inputs,
                                                          std::span<const Attribute> attributes);

/// Runs an op through the dispatcher.
[[gnu::visibility("default")]] Tensors dispatch(const Op& op, torch::jit::Stack arguments);

/// Runs an op past the dispatcher where the dispatcher would do nothing but record a gradient and
/// call the kernel: for plain dense tensors of the CPU or CUDA, with no tangent, no autocast, no
/// mode, no transform, no tracing and no profiler. False: it has not run.
[[gnu::visibility("default")]] bool call_plain(const Op& op, Inputs inputs,
                                               std::span<const Attribute> attributes,
                                               Tensors& outputs);

/// The error for an input of a dtype that the core does not know at all.
[[gnu::visibility("default")]] Status unknown_dtype(const Op& op, std::size_t input,
                                                    std::string_view dtype);

/// Checks a call and fills in the types of its outputs, one for each output of the signature.
[[gnu::visibility("default")]] Status infer_on_host(const Op& op,
                                                    std::span<const TensorView> inputs,
                                                    std::span<const Attribute> attributes,
                                                    std::span<OutputType<std::int64_t>> outputs);

/// Runs a call that infer_on_host() has accepted, on host memory and torch's threads.
[[gnu::visibility("default")]] Status run_on_host(const Op& op, std::span<const TensorView> inputs,
                                                  std::span<const TensorView> outputs,
                                                  std::span<const Attribute> attributes);

}  // namespace cudarelu::binding

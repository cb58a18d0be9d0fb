// The functions of libcudarelu_torch.so that the Python module calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cudarelu/gradient.h"
#include "cudarelu/infer.h"

namespace cudarelu::binding {

/// Returns the modules whose ops are in torch.ops.<name of the module>. The first one is that of
/// libcudarelu_ops.so, beside this library or in the folder above, which this library registers
/// when it is loaded.
[[gnu::visibility("default")]] std::vector<const Module*> registered_modules();

/// Returns why libcudarelu_ops.so has not been registered; empty if it has.
[[gnu::visibility("default")]] std::string own_module_problem();

/// Reads a library without registering its ops. Throws std::invalid_argument as load_module() does.
[[gnu::visibility("default")]] std::unique_ptr<Module> read_library(
    const std::filesystem::path& path);

/// Loads an op module and registers its ops with PyTorch; returns the known module if the same
/// library, or a copy of it, has been loaded. Throws std::invalid_argument, and then registers
/// nothing, if the file is not an op module, if its gradients are malformed, or if its name is
/// taken. Thread-safe.
[[gnu::visibility("default")]] const Module& load_module(const std::filesystem::path& path);

/// Throws std::invalid_argument, with the reason, unless a module to be built can have the name.
[[gnu::visibility("default")]] void check_new_name(std::string_view name);

/// Returns the parsed gradient of an op.
[[gnu::visibility("default")]] std::vector<Gradient> gradient_of(const Op& op);

/// Returns the op that runs instead of `op` when a gradient is needed, or nullptr.
[[gnu::visibility("default")]] const Op* training_form_of(const Op& op);

/// Returns why matrix products on CUDA cannot use cuBLASLt and how to correct it; empty if they
/// can.
[[gnu::visibility("default")]] std::string cublaslt_problem();

/// Returns the dispatcher's handle of an op of a registered module.
[[gnu::visibility("default")]] const c10::OperatorHandle& handle_of(const Op& op);

using Inputs = std::span<const at::Tensor* const>;  // null: an absent optional input
using InputPointers = c10::SmallVector<const at::Tensor*, 4>;
using Tensors = c10::SmallVector<at::Tensor, 4>;
using Attributes = c10::SmallVector<Attribute, 4>;

/// Returns the label of an enumeration's value, which check_attributes() must have accepted.
inline std::string_view label_of(const AttributeSpec& spec, const Attribute& value) {
  return spec.labels[static_cast<std::size_t>(std::get<std::int64_t>(value))];
}

/// Converts an attribute to the type of PyTorch's schema: of an enumeration, the label as a str.
inline c10::IValue ivalue_of(const AttributeSpec& spec, const Attribute& value) {
  if (spec.type == AttributeType::label) return std::string(label_of(spec, value));
  if (spec.type == AttributeType::boolean) return std::get<std::int64_t>(value) != 0;
  if (spec.optional && std::isnan(std::get<double>(value))) return {};
  return std::visit([](auto number) { return c10::IValue(number); }, value);
}

/// Returns the arguments of a call for the dispatcher. The stack shares the tensors.
[[gnu::visibility("default")]] torch::jit::Stack stack_of(const Op& op, Inputs inputs,
                                                          std::span<const Attribute> attributes);

/// Runs an op through the dispatcher.
[[gnu::visibility("default")]] Tensors dispatch(const Op& op, torch::jit::Stack arguments);

/// Runs an op without the dispatcher, if the dispatcher would only record a gradient and call the
/// kernel: for plain dense tensors on the CPU or CUDA, without tangents, autocast, modes,
/// transforms, tracing and profiler. Returns false if it has not run the op.
[[gnu::visibility("default")]] bool call_plain(const Op& op, Inputs inputs,
                                               std::span<const Attribute> attributes,
                                               Tensors& outputs);

/// Calls with(op), which may throw, before TorchScript records an in-place operator in a trace, or
/// its interpreter runs one.
[[gnu::visibility("default")]] void check_traced_writes(void (*with)(const Op& op));

/// Runs a call that infer() has accepted, on host memory with torch's threads.
[[gnu::visibility("default")]] Status run_on_host(const Op& op, std::span<const TensorView> inputs,
                                                  std::span<const TensorView> outputs,
                                                  std::span<const Attribute> attributes);

}  // namespace cudarelu::binding

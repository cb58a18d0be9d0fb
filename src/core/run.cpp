#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <sstream>
#include <string>

#include "cudarelu/detail/boundary.h"
#include "cudarelu/infer.h"
#include "cudarelu/op.h"
#include "cudarelu/types.h"
#include "nvtx_range.h"

namespace cudarelu {
namespace {

using Code = Status::Code;

/// Checks the offsets of batches of `size` rows: they do not decrease, and none is over `size`.
Status check_offsets(const Op& op, const Parameter& input, const TensorView& offsets,
                     std::int64_t size) {
  const auto* values = static_cast<const std::int32_t*>(offsets.data);
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i < offsets.shape[0]; ++i) {
    if (values[i] >= previous && values[i] <= size) {
      previous = values[i];
      continue;
    }
    const std::string at =
        std::string(input.name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]);
    if (values[i] < previous) {
      return detail::error(Code::invalid_argument, op,
                           at + ", less than " + std::to_string(previous) + " before it");
    }
    return detail::error(Code::invalid_argument, op,
                         at + ", which exceeds dimension " + std::string(input.offsets_into) +
                             ", " + std::to_string(size));
  }
  return {};
}

Status check_positive(const Op& op, const Parameter& input, const TensorView& tensor) {
  return visit_dtype<real_types>(tensor.dtype, [&]<class T>(TypeTag<T>) {
    const auto* values = static_cast<const T*>(tensor.data);
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const auto value = static_cast<double>(load(values[i]));
      if (value > 0) continue;
      std::ostringstream message;
      message << input.name << "[" << i << "] is " << value << ", but must be greater than 0";
      return detail::error(Code::invalid_argument, op, message.str());
    }
    return Status();
  });
}

/// Input i, or its default input.
const TensorView& resolved(const Op& op, std::span<const TensorView> inputs, std::size_t i) {
  return inputs[op.signature.source_of(i, inputs[i].present)];
}

Status check_values(const Op& op, std::span<const TensorView> inputs) {
  const auto& parameters = op.signature.inputs;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].positive && inputs[i].present) {
      Status status = check_positive(op, parameters[i], inputs[i]);
      if (!status.ok()) return status;
    }
    if (!parameters[i].type.is_offsets()) continue;
    for (std::size_t other = 0; other < parameters.size(); ++other) {
      const int dim = index_of(parameters[other].dims, parameters[i].offsets_into);
      const TensorView& divided = resolved(op, inputs, other);
      if (dim < 0 || !divided.present) continue;
      const std::size_t axis =
          parameters[other].axis_of(static_cast<std::size_t>(dim), divided.shape.size());
      Status status =
          check_offsets(op, parameters[i], resolved(op, inputs, i), divided.shape[axis]);
      if (!status.ok()) return status;
      break;
    }
  }
  return {};
}

Execution& execution_of(void* host) { return *static_cast<Execution*>(host); }

cudarelu_code no_engines(const cudarelu_call& call, cudarelu_error& error) {
  return to_c(Status(Code::unavailable,
                     std::string(call.op, call.op_length) +
                         ": libcudarelu_ops.so, which has the engines for matrix products, is not "
                         "beside the module's library"),
              error);
}

cudarelu_code fused_matmul(const cudarelu_call* call, const cudarelu_gemm* gemm,
                           cudarelu_error* error) {
  const cudarelu_engines* const engines = find_engines();
  if (engines == nullptr) return no_engines(*call, *error);
  if (from_c(*gemm).other != nullptr && !reads_other(*engines)) {
    return to_c(too_old_for_other({call->op, call->op_length}), *error);
  }
  return engines->fused_matmul(call, gemm, error);
}

constexpr cudarelu_services services{
    .size = sizeof(cudarelu_services),
    .parallel_for =
        [](void* host, std::int64_t n, std::int64_t grain,
           void (*body)(void*, std::int64_t, std::int64_t), void* state) {
          execution_of(host).parallel_for(
              n, grain, [&](std::int64_t begin, std::int64_t end) { body(state, begin, end); });
        },
    .allocate = [](void* host, std::size_t bytes) { return execution_of(host).allocate(bytes); },
    .matmul =
        [](void* host, const cudarelu_gemm* gemm, cudarelu_error* error) {
          return to_c(execution_of(host).matmul(from_c(*gemm)), *error);
        },
    .has_matmul = [](void* host, std::uint32_t dtype) -> std::int32_t {
      return execution_of(host).has_matmul(static_cast<DType>(dtype));
    },
    .allow_tf32 = [](void* host) -> std::int32_t { return execution_of(host).allow_tf32(); },
    .fused_matmul = fused_matmul,
    .gemm_size = sizeof(cudarelu_gemm),
};

/// Calls the kernel of the call's device.
Status run_kernel(const Op& op, std::span<const TensorView> inputs,
                  std::span<const TensorView> outputs, std::span<const Attribute> attributes,
                  Execution& execution, const Strides& strides) {
  const bool on_cpu = execution.device_type == DeviceType::cpu;
  const cudarelu_kernel kernel = on_cpu ? op.cpu : op.cuda;
  if (kernel == nullptr) [[unlikely]] {
    return detail::error(Code::unavailable, op,
                         std::string("the op has no kernel for ") + (on_cpu ? "the CPU" : "CUDA") +
                             "; the module " + std::string(op.module->name) + " was built for " +
                             std::string(op.module->built_for));
  }
  std::array<cudarelu_attribute, max_attributes> attribute_values;  // as `error` below
  for (std::size_t i = 0; i < attributes.size(); ++i) attribute_values[i] = to_c(attributes[i]);
  const cudarelu_call call{.size = sizeof(cudarelu_call),
                           .op = op.name.data(),
                           .op_length = op.name.size(),
                           .inputs = to_c(inputs),
                           .outputs = to_c(outputs),
                           .attributes = attribute_values.data(),
                           .input_count = static_cast<std::uint32_t>(inputs.size()),
                           .output_count = static_cast<std::uint32_t>(outputs.size()),
                           .attribute_count = static_cast<std::uint32_t>(attributes.size()),
                           .device_type = on_cpu ? CUDARELU_CPU : CUDARELU_CUDA,
                           .device_index = execution.device_index,
                           .stream = execution.stream,
                           .services = &services,
                           .host = &execution,
                           .input_strides = strides.inputs,
                           .output_strides = strides.outputs};
  cudarelu_error error;  // initial values would cost as much as a small kernel
  return from_c(kernel(&call, &error), error);
}

/// The same where inputs are absent: their stand-ins replace them.
Status run_with_default_inputs(const Op& op, std::span<const TensorView> inputs,
                               std::span<const TensorView> outputs,
                               std::span<const Attribute> attributes, Execution& execution,
                               Strides strides) {
  std::array<TensorView, max_inputs> complete;
  std::array<const std::int64_t*, max_inputs> input_strides;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t source = op.signature.source_of(i, inputs[i].present);
    complete[i] = inputs[source];
    if (strides.inputs != nullptr) input_strides[i] = strides.inputs[source];
  }
  if (strides.inputs != nullptr) strides.inputs = input_strides.data();
  return run_kernel(op, std::span(complete).first(inputs.size()), outputs, attributes, execution,
                    strides);
}

/// The error for an exception, or out_of_memory if there is no memory for its message.
Status internal_error(const char* what) noexcept {
  try {
    return {Code::internal, what};
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  }
}

}  // namespace

Status engine_matmul(const Gemm& gemm, Execution& execution) {
  constexpr std::string_view name = "matrix product";
  const cudarelu_call call{.size = sizeof(cudarelu_call),
                           .op = name.data(),
                           .op_length = name.size(),
                           .inputs = nullptr,
                           .outputs = nullptr,
                           .attributes = nullptr,
                           .input_count = 0,
                           .output_count = 0,
                           .attribute_count = 0,
                           .device_type = CUDARELU_CPU,
                           .device_index = 0,
                           .stream = nullptr,
                           .services = &services,
                           .host = &execution,
                           .input_strides = nullptr,
                           .output_strides = nullptr};
  const cudarelu_engines* const engines = find_engines();
  const bool has_matmul =
      engines != nullptr && engines->size >= offsetof(cudarelu_engines, gemm_size);
  const cudarelu_gemm product = to_c(gemm);
  cudarelu_error error;
  return from_c(has_matmul ? engines->matmul(&call, &product, &error) : no_engines(call, error),
                error);
}

Status run(const Op& op, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
           std::span<const Attribute> attributes, Execution& execution,
           const Strides& strides) noexcept {
  try {
    if (op.signature.restricts_values && execution.device_type == DeviceType::cpu) {
      Status status = check_values(op, inputs);
      if (!status.ok()) return status;
    }
    [[maybe_unused]] const NvtxRange range(op);
    const bool all = std::ranges::all_of(inputs, &TensorView::present);
    return all ? run_kernel(op, inputs, outputs, attributes, execution, strides)
               : run_with_default_inputs(op, inputs, outputs, attributes, execution, strides);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  } catch (const std::exception& error) {
    return internal_error(error.what());
  }
}

}  // namespace cudarelu

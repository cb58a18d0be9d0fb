#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <sstream>
#include <string>

#include "cudarelu/infer.h"
#include "types.h"

#ifdef CUDARELU_WITH_CUDA
#include "cuda/device.h"
#include "cuda/gemm/cublaslt.h"
#endif

namespace cudarelu {
namespace {

using Code = Status::Code;

#ifndef CUDARELU_WITH_CUDA
constexpr const char* no_kernels =
    "this build has no CUDA kernels; configure with -DCUDARELU_CUDA=ON";
#endif

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
                         at + ", over dimension " + std::string(input.offsets_into) +
                             ", which is " + std::to_string(size));
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
      message << input.name << "[" << i << "] is " << value << ", but must be over 0";
      return detail::error(Code::invalid_argument, op, message.str());
    }
    return Status();
  });
}

Status check_values(const Op& op, std::span<const TensorView> inputs) {
  const auto& parameters = op.signature.inputs;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].positive && inputs[i].present) {
      Status status = check_positive(op, parameters[i], inputs[i]);
      if (!status.ok()) return status;
    }
    if (parameters[i].kind != ElementKind::offsets) continue;
    for (std::size_t other = 0; other < parameters.size(); ++other) {
      const int dim = index_of(parameters[other].dims, parameters[i].offsets_into);
      if (dim < 0 || !inputs[other].present) continue;
      const auto& shape = inputs[other].shape;
      const std::size_t lead = shape.size() - parameters[other].dims.size();
      Status status =
          check_offsets(op, parameters[i], inputs[i], shape[lead + static_cast<std::size_t>(dim)]);
      if (!status.ok()) return status;
      break;
    }
  }
  return {};
}

/// Runs a call in which stand-ins have replaced absent inputs.
Status run_complete(const Call& call) {
  if (call.execution.device_type == DeviceType::cpu) {
    Status status = check_values(call.op, call.inputs);
    if (!status.ok()) return status;
    return call.op.cpu(call);
  }
#ifdef CUDARELU_WITH_CUDA
  return cuda::run_on_device(call, call.op.cuda);
#else
  return detail::error(Code::unavailable, call.op, no_kernels);
#endif
}

Status run_with_stand_ins(const Call& call) {
  std::array<TensorView, decltype(Signature::inputs)::capacity()> inputs;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    inputs[i] = call.inputs[call.op.signature.source_of(i, call.inputs[i].present)];
  }
  return run_complete({call.op, std::span(inputs).first(call.inputs.size()), call.outputs,
                       call.attributes, call.execution});
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

std::string cublaslt_problem() {
#ifdef CUDARELU_WITH_CUDA
  return cuda::cublaslt_problem();
#else
  return no_kernels;
#endif
}

Status run(const Call& call) noexcept {
  try {
    const bool complete = std::ranges::all_of(call.inputs, &TensorView::present);
    return complete ? run_complete(call) : run_with_stand_ins(call);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  } catch (const std::exception& error) {
    return internal_error(error.what());
  } catch (...) {
    return internal_error("an exception of an unknown type");
  }
}

}  // namespace cudarelu

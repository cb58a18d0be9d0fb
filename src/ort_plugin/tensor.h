// Access to ONNX Runtime's tensors.
#pragma once

#include <onnxruntime_c_api.h>

#include <array>
#include <cstdint>
#include <span>

#include "cudarelu/infer.h"
#include "runtime.h"

namespace cudarelu::ort {

/// Room for a shape, for runtimes that only give copies.
using ShapeStorage = std::array<std::int64_t, max_rank>;

/// The tensor's memory; null where it has no elements. Who calls knows whether it may write there.
inline void* data_of(const OrtApi& api, const OrtValue& tensor) {
  void* data = nullptr;
  check(api.GetTensorMutableData(const_cast<OrtValue*>(&tensor), &data));
  return data;
}

/// The tensor's shape, valid while the tensor and the storage are. Throws a Failure where the rank
/// is over max_rank.
std::span<const std::int64_t> shape_of(const Runtime& runtime, const OrtValue& tensor,
                                       ShapeStorage& storage);

}  // namespace cudarelu::ort

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

/// GetTensorElementTypeAndShapeDataReference, which came with 1.24: it allocates nothing. Older
/// headers do not declare it; the table of functions only ever grows, so its place is fixed.
using ShapeReference = OrtStatus* (*)(const OrtValue*, ONNXTensorElementDataType*,
                                      const std::int64_t**, std::size_t*);
inline constexpr int shape_reference_since = 24;
inline constexpr std::size_t shape_reference_slot = 414;

/// The shape as older runtimes give it.
std::span<const std::int64_t> copy_shape(const OrtApi& api, const OrtValue& tensor,
                                         ShapeStorage& storage);

/// The tensor's shape, valid while the tensor and the storage are. Throws a Failure where the rank
/// is over max_rank and the shape would have to be copied.
inline std::span<const std::int64_t> shape_of(const Runtime& runtime, const OrtValue& tensor,
                                              ShapeStorage& storage) {
  const OrtApi& api = *runtime.api;
  if (runtime.minor < shape_reference_since) return copy_shape(api, tensor, storage);
  const auto reference = reinterpret_cast<const ShapeReference*>(&api)[shape_reference_slot];
  ONNXTensorElementDataType type{};
  const std::int64_t* dims = nullptr;
  std::size_t rank = 0;
  check(reference(&tensor, &type, &dims, &rank));
  return {dims, rank};
}

}  // namespace cudarelu::ort

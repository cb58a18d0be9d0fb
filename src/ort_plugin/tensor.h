// Access to tensors of ONNX Runtime.
#pragma once

#include <onnxruntime_c_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "cudarelu/infer.h"
#include "runtime.h"

namespace cudarelu::ort {

/// Storage for the copy of a shape, which older runtimes need.
using ShapeStorage = std::array<std::int64_t, max_rank>;

/// Returns the data of a tensor; null if it has no elements. Only outputs may be written to.
inline void* data_of(const OrtApi& api, const OrtValue& tensor) {
  void* data = nullptr;
  check(api.GetTensorMutableData(const_cast<OrtValue*>(&tensor), &data));
  return data;
}

using TypeInfo =
    std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(OrtApi::ReleaseTensorTypeAndShapeInfo)>;

/// Copies the dtype and shape of a tensor, as every runtime can.
inline TypeInfo type_info(const OrtApi& api, const OrtValue& tensor) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api.GetTensorTypeAndShape(&tensor, &info));
  return {info, api.ReleaseTensorTypeAndShapeInfo};
}

/// The dtype of a tensor of one element and of rank 0 or 1; nothing for other tensors and dtypes.
std::optional<DType> dtype_of_one_element(const OrtApi& api, const OrtValue& value);

/// GetTensorElementTypeAndShapeDataReference, which does not allocate memory, exists since 1.24.
/// Older headers do not declare it, so it is called by its fixed position in OrtApi.
using ShapeReference = OrtStatus* (*)(const OrtValue*, ONNXTensorElementDataType*,
                                      const std::int64_t**, std::size_t*);
inline constexpr int shape_reference_since = 24;
inline constexpr std::size_t shape_reference_slot = 414;

/// Copies the shape to the storage, for older runtimes.
std::span<const std::int64_t> copy_shape(const OrtApi& api, const OrtValue& tensor,
                                         ShapeStorage& storage);

/// Returns the shape of a tensor, valid as long as the tensor and the storage. Throws a Failure if
/// the shape must be copied and its rank exceeds max_rank.
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

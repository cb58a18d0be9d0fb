// Conversion between element types of cudarelu and ONNX Runtime.
#pragma once

#include <onnxruntime_c_api.h>

#include <array>
#include <optional>

#include "cudarelu/dtype.h"

namespace cudarelu::ort {

constexpr ONNXTensorElementDataType onnx_type_of(DType dtype) {
  constexpr std::array<ONNXTensorElementDataType, all_dtypes.size()> types{
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,   ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,   ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL};
  return types[static_cast<std::size_t>(dtype)];
}

constexpr std::optional<DType> dtype_of(ONNXTensorElementDataType type) {
  for (const DType dtype : all_dtypes) {
    if (onnx_type_of(dtype) == type) return dtype;
  }
  return std::nullopt;
}

}  // namespace cudarelu::ort

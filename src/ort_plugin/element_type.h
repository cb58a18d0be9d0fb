// Conversion between element types of cudarelu and ONNX Runtime.
#pragma once

#include <onnxruntime_c_api.h>

#include "cudarelu/dtype_table.h"

namespace cudarelu::ort {

inline constexpr DTypeTable<ONNXTensorElementDataType> element_types{
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
     ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
     ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
     ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
     ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL}};

}  // namespace cudarelu::ort

// The kernel for CUDA, which squared_relu.cu defines.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>

void squared_relu_cuda(ONNXTensorElementDataType dtype, const void* x, void* y, std::int64_t n,
                       void* stream);

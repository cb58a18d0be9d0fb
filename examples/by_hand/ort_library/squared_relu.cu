#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdexcept>
#include <type_traits>

#include "squared_relu.h"

template <class T>
__global__ void squared_relu_kernel(const T* x, T* y, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto value = static_cast<Compute>(x[i]);
  y[i] = static_cast<T>(value < 0 ? Compute(0) : value * value);
}

template <class T>
void launch(const void* x, void* y, std::int64_t n, void* stream) {
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + 255) / 256);
  squared_relu_kernel<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const T*>(x), static_cast<T*>(y), n);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

void squared_relu_cuda(ONNXTensorElementDataType dtype, const void* x, void* y, std::int64_t n,
                       void* stream) {
  switch (dtype) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return launch<float>(x, y, n, stream);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return launch<double>(x, y, n, stream);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return launch<__half>(x, y, n, stream);
    default:
      return launch<__nv_bfloat16>(x, y, n, stream);
  }
}

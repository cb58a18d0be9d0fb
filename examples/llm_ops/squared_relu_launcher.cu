#include "squared_relu_launcher.h"

namespace {

constexpr int block_size = 256;

__global__ void squared_relu_kernel(const float* x, float* y, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_size + threadIdx.x;
  if (i >= n) return;
  const float rectified = x[i] < 0.0f ? 0.0f : x[i];
  y[i] = rectified * rectified;
}

}  // namespace

void squared_relu_launcher(const float* x, float* y, std::int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + block_size - 1) / block_size);
  squared_relu_kernel<<<blocks, block_size, 0, stream>>>(x, y, n);
}

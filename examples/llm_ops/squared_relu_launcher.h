// A launcher from elsewhere, which knows nothing of cudarelu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

/// y[i] = max(x[i], 0)^2 for i < n, on `stream`. x and y may be the same memory.
void squared_relu_launcher(const float* x, float* y, std::int64_t n, cudaStream_t stream);

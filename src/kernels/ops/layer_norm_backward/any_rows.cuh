// Rows of any length and alignment: read for grad_x, and again for the sums.
#pragma once

#include "cudarelu/detail/cuda/launch.cuh"
#include "ops/layer_norm_backward/sums.cuh"

namespace cudarelu::ops::layer_norm_gradient {

/// Each block computes grad_x of rows, gridDim.x apart, and their Normalisers.
template <class T>
__global__ void __launch_bounds__(256)
    row_gradients(Arguments<T> of, gpu::Normaliser<Compute<T>>* normalisers) {
  using C = Compute<T>;
  gpu::wait_for_previous_kernel();
  const auto sum_in_block = [](C value) {
    __shared__ C sums[8];
    value = gpu::sum_in_warp(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    return gpu::sum_in_warp<8>(sums[threadIdx.x % 8]);
  };
  const auto total = static_cast<C>(of.columns);
  const C share = 1 / total;
  for (std::int64_t row = blockIdx.x; row < of.rows; row += gridDim.x) {
    const std::int64_t offset = row * of.columns;
    const auto g = [&](std::int64_t i) {
      const C grad_y = load(of.grad_y[offset + i]);
      return of.weight == nullptr ? grad_y : grad_y * load(of.weight[i]);
    };
    // As in Moments::of_lanes: relative to the first element.
    const C first = C(0.5) * load(of.x[offset]);
    C apart = 0;
    for (std::int64_t i = threadIdx.x; i < of.columns; i += blockDim.x) {
      apart = gpu::fused(C(0.5) * load(of.x[offset + i]) - first, 2 * share, apart);
    }
    Sums<C> sums{gpu::fused(C(2), first, sum_in_block(apart)), total};
    for (std::int64_t i = threadIdx.x; i < of.columns; i += blockDim.x) {
      sums.add(load(of.x[offset + i]), g(i));
    }
    for (C* sum : {&sums.d, &sums.squares, &sums.g, &sums.products}) *sum = sum_in_block(*sum);
    const RowGradient<C> gradient(sums, share, of.eps);
    for (std::int64_t i = threadIdx.x; i < of.columns; i += blockDim.x) {
      const C normal = gradient.normalised(load(of.x[offset + i]));
      of.grad_x[offset + i] = store<T>(gradient(normal, g(i)));
    }
    if (threadIdx.x == 0) normalisers[row] = gradient.normalised;
  }
}

inline constexpr int tile_columns = 32;  // of a block
inline constexpr int chunk_rows = 8;     // of a block at a time

/// The sums over groups of 8 rows, every gridDim.y-th for a block: [gridDim.y, 2, columns].
template <class T>
__global__ void __launch_bounds__(tile_columns* chunk_rows)
    sum_chunks(Arguments<T> of, const gpu::Normaliser<Compute<T>>* normalisers, Compute<T>* sums) {
  using C = Compute<T>;
  __shared__ C partial[2][chunk_rows][tile_columns];
  gpu::wait_for_previous_kernel();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * tile_columns + threadIdx.x;
  C grad_weight = 0;
  C grad_bias = 0;
  if (column < of.columns) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * chunk_rows;
    for (std::int64_t row = blockIdx.y * chunk_rows + threadIdx.y; row < of.rows; row += step) {
      const C g = load(of.grad_y[row * of.columns + column]);
      grad_weight =
          gpu::fused(g, normalisers[row](load(of.x[row * of.columns + column])), grad_weight);
      grad_bias += g;
    }
  }
  partial[0][threadIdx.y][threadIdx.x] = grad_weight;
  partial[1][threadIdx.y][threadIdx.x] = grad_bias;
  __syncthreads();
  if (threadIdx.y > 1 || column >= of.columns) return;
  C total = 0;
  for (int i = 0; i < chunk_rows; ++i) total += partial[threadIdx.y][i][threadIdx.x];
  sums[(blockIdx.y * 2 + threadIdx.y) * of.columns + column] = total;
}

}  // namespace cudarelu::ops::layer_norm_gradient

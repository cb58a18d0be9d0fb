#include <algorithm>
#include <limits>

#include "activation.h"
#include "cuda/gemm/fallback_gemm.h"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/types.h"

namespace cudarelu::gpu {
namespace {

constexpr int tile = 64;   // rows and columns of the product that a block computes at the same time
constexpr int depth = 16;  // k of the parts of the factors in shared memory
constexpr int per_thread = 4;  // rows and columns of the product that a thread computes
constexpr int side = tile / per_thread;
constexpr int threads = side * side;

/// a b + c, rounded once.
__device__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ double fused(double a, double b, double c) { return fma(a, b, c); }

/// A matrix [rows, columns] in memory, or its transpose.
template <class T>
struct Matrix {
  const T* data;
  std::int64_t rows;
  std::int64_t columns;
  bool transposed;

  __device__ Compute<T> operator()(std::int64_t row, std::int64_t column) const {
    if (row >= rows || column >= columns) return 0;
    return load(data[transposed ? column * rows + row : row * columns + column]);
  }
};

template <class C>
using Part = C[depth][tile + 1];

/// Calls use(k, outer) for the thread's elements of a part. Threads in a row take elements along k
/// if `along_depth`, else along the other index: those which are contiguous in memory.
template <class Use>
__device__ void for_each_of_part(bool along_depth, const Use& use) {
  for (int i = static_cast<int>(threadIdx.x); i < tile * depth; i += threads) {
    along_depth ? use(i % depth, i / depth) : use(i / tile, i % tile);
  }
}

template <class T>
__global__ void __launch_bounds__(threads) multiply(Gemm gemm, std::int64_t tiles) {
  using C = Compute<T>;
  __shared__ Part<C> a_part;
  __shared__ Part<C> b_part;
  wait_for_previous_kernel();
  const int first_row = static_cast<int>(threadIdx.x) / side * per_thread;
  const int first_column = static_cast<int>(threadIdx.x) % side * per_thread;
  const std::int64_t columns_of_tiles = (gemm.n + tile - 1) / tile;
  const std::int64_t tiles_of_matrix = (gemm.m + tile - 1) / tile * columns_of_tiles;
  for (std::int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const std::int64_t matrix = index / tiles_of_matrix;
    const std::int64_t row = index % tiles_of_matrix / columns_of_tiles * tile;
    const std::int64_t column = index % columns_of_tiles * tile;
    const Matrix<T> a{static_cast<const T*>(gemm.a) + matrix * gemm.m * gemm.k, gemm.m, gemm.k,
                      gemm.a_transposed};
    const Matrix<T> b{static_cast<const T*>(gemm.b) + matrix * gemm.k * gemm.n, gemm.k, gemm.n,
                      gemm.b_transposed};
    C sums[per_thread][per_thread]{};
    for (std::int64_t k = 0; k < gemm.k; k += depth) {
      for_each_of_part(!gemm.a_transposed, [&](int i, int j) { a_part[i][j] = a(row + j, k + i); });
      for_each_of_part(gemm.b_transposed,
                       [&](int i, int j) { b_part[i][j] = b(k + i, column + j); });
      __syncthreads();
      for (int i = 0; i < depth; ++i) {
        for (int r = 0; r < per_thread; ++r) {
          for (int c = 0; c < per_thread; ++c) {
            sums[r][c] = fused(a_part[i][first_row + r], b_part[i][first_column + c], sums[r][c]);
          }
        }
      }
      __syncthreads();
    }
    // Not in registers, so that the epilogue, with all activations, is in the code once.
    C values[per_thread * per_thread];
    for (int e = 0; e < per_thread * per_thread; ++e) {
      values[e] = sums[e / per_thread][e % per_thread];
    }
#pragma unroll 1
    for (int e = 0; e < per_thread * per_thread; ++e) {
      const std::int64_t i = row + first_row + e / per_thread;
      const std::int64_t j = column + first_column + e % per_thread;
      if (i >= gemm.m || j >= gemm.n) continue;
      const std::int64_t offset = (matrix * gemm.m + i) * gemm.n + j;
      C value = values[e];
      if (gemm.bias != nullptr) value += load(static_cast<const T*>(gemm.bias)[j]);
      if (gemm.sum != nullptr) static_cast<T*>(gemm.sum)[offset] = store<T>(value);
      visit_activation(gemm.activation,
                       [&](auto constant) { value = activated<constant.value>(value); });
      if (gemm.other != nullptr) {
        value = combined(gemm.combine, value, load(static_cast<const T*>(gemm.other)[offset]));
      }
      static_cast<T*>(gemm.d)[offset] = store<T>(value);
    }
  }
}

}  // namespace

Status fallback_gemm(const Call& call, const Gemm& gemm) {
  const std::int64_t tiles = gemm.batch * ceil_div(gemm.m, tile) * ceil_div(gemm.n, tile);
  const auto blocks = std::min<std::int64_t>(tiles, std::numeric_limits<std::int32_t>::max());
  return visit_dtype<floating_types>(gemm.dtype, [&]<class T>(TypeTag<T>) {
    const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(threads)};
    return launch(call, multiply<T>, grid, gemm, tiles);
  });
}

}  // namespace cudarelu::gpu

// What the kernels of attention on compute capability 9.0 share.
#pragma once

#include "cuda/gemm/hopper.cuh"
#include "ops/attention/arithmetic.cuh"
#include "ops/attention/hopper_products.cuh"

namespace cudarelu::ops::attention::hopper {

namespace ptx = ::cuda::ptx;
namespace wgmma = cuda::wgmma;

inline constexpr int group_rows = 64;  // of a warpgroup: the rows of its instructions

/// Keeps the compiler from moving accesses to the sums of a product over this place.
template <int count>
__device__ __forceinline__ void pin(float (&sums)[count]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

template <int count>
__device__ __forceinline__ void pin(unsigned (&words)[count]) {
#pragma unroll
  for (unsigned& word : words) asm volatile("" : "+r"(word)::"memory");
}

/// Keeps the compiler from moving the wait for products that follows before the computation of `x`,
/// which is not negative: it moves waits over arithmetic, but not over a branch that depends on it.
__device__ __forceinline__ void keep_before(float x) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p nanosleep.u32 0;}" ::"f"(x)
               : "memory");
}

template <int count>
__device__ __forceinline__ void keep_before(const float (&values)[count]) {
  unsigned all = 0;
#pragma unroll
  for (const float value : values) all |= __float_as_uint(value);
  keep_before(__uint_as_float(all));
}

/// Requests `rows` rows of a matrix, of `width` columns.
template <int rows, int width>
__device__ __forceinline__ void request(const CUtensorMap& map, char* to, int row, int matrix,
                                        std::uint64_t* barrier) {
#pragma unroll
  for (int column = 0; column < width; column += wgmma::panel_columns) {
    const std::int32_t at[3] = {column, row, matrix};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to + column * rows * 2, &map,
                              at, barrier);
  }
}

__device__ __forceinline__ void expect(std::uint64_t* barrier, int bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                 bytes);
}

/// Releases what a warpgroup has waited for the products of.
__device__ __forceinline__ void release(std::uint64_t* barrier) {
  if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(barrier);
}

/// Gives lane i of four word i of each, in their order.
__device__ __forceinline__ void turn(unsigned (&words)[4], int lane) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const unsigned other =
          __shfl_xor_sync(~0u, upper ? words[i] : words[i + step], static_cast<unsigned>(step));
      if (upper) {
        words[i] = other;
      } else {
        words[i + step] = other;
      }
    }
  }
}

}  // namespace cudarelu::ops::attention::hopper

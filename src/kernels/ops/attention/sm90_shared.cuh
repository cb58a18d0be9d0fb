// What the kernels of attention on compute capability 9.0 share.
#pragma once

#include "cuda/gemm/sm90_gemm.cuh"
#include "cuda/gemm/tensor_map.h"
#include "ops/attention/arithmetic.cuh"
#include "ops/attention/params.h"
#include "ops/attention/sm90_products.cuh"

namespace cudarelu::ops::attention::sm90 {

namespace ptx = ::cuda::ptx;
namespace wgmma = gpu::wgmma;

inline constexpr int group_rows = 64;  // of a warpgroup: the rows of its instructions

/// Keeps the compiler from moving accesses to the sums of a product over this point.
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

/// A head, in an item of the batch.
struct Head {
  int head;
  int item;

  /// From a number that counts `heads` heads of each item.
  __device__ __forceinline__ static Head of(int number, const Divisor& heads) {
    const auto item = static_cast<int>(heads.quotient(static_cast<unsigned>(number)));
    return {number - item * heads.number, item};
  }
};

/// Describes a tensor like q or k, of which `rows` rows of a head are copied at a time.
inline Status describe(const Call& call, CUtensorMap& map, std::size_t input, const Layout& layout,
                       std::int64_t batch, int rows) {
  const TensorView& tensor = call.inputs[input];
  const auto sizes = tensor.shape.last(3);
  return gpu::describe<4>(call, map, tensor.dtype, tensor.data,
                          {sizes[2], sizes[1], sizes[0], batch},
                          {layout.row, layout.head, layout.batch}, rows);
}

/// Requests `rows` rows of a head, of `width` columns.
template <int rows, int width>
__device__ __forceinline__ void request(const CUtensorMap& map, char* to, int row, Head head,
                                        std::uint64_t* barrier) {
#pragma unroll
  for (int column = 0; column < width; column += wgmma::panel_columns) {
    const std::int32_t at[4] = {column, row, head.head, head.item};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to + column * rows * 2, &map,
                              at, barrier);
  }
}

__device__ __forceinline__ void expect(std::uint64_t* barrier, int bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                 bytes);
}

/// Releases the operands of products for which a warpgroup has waited.
__device__ __forceinline__ void release(std::uint64_t* barrier) {
  if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(barrier);
}

/// Gives lane i of four word i of each, in their order.
__device__ __forceinline__ void transpose(unsigned (&words)[4], int lane) {
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

}  // namespace cudarelu::ops::attention::sm90

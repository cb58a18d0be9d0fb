// What the kernels of attention on compute capability 9.0 share.
#pragma once

#include "cuda/tile/mma.cuh"
#include "cuda/tile/pipeline.cuh"
#include "cuda/tile/tensor_map.h"
#include "cuda/tile/threads.cuh"
#include "cuda/tile/wgmma.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "ops/attention/arithmetic.cuh"
#include "ops/attention/params.h"

namespace cudarelu::ops::attention::sm90 {

namespace ptx = gpu::ptx;
namespace wgmma = gpu::wgmma;
using gpu::expect;
using gpu::pack;
using gpu::release;
using gpu::transpose;
using gpu::wait;

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

/// A row of tiles of a head.
struct HeadTile {
  int head;  // counted over the batch
  int line;  // of the tiles of the head

  /// Consecutive numbers are for the same line of `heads_at_once` heads, whose other matrices the
  /// cache holds, then for the next line.
  template <class Tiles>
  __device__ __forceinline__ static HeadTile of(const Tiles& tiles, int number) {
    const int size = tiles.heads_at_once * tiles.row_tiles;
    const int section = number / size;
    const int first_head = section * tiles.heads_at_once;
    const int heads = min(tiles.heads_at_once, tiles.heads - first_head);
    const int index = number - section * size;
    const int line = index / heads;
    return {first_head + index - line * heads, line};
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

/// Writes `width` columns of a row of the results of a product, if it exists: the first or the
/// second of those that a thread has a part of.
template <class T, int count, class Width>
__device__ __forceinline__ void write_results(const float (&sums)[count], int half, int lane,
                                              bool exists, T* row, Width width) {
#pragma unroll
  for (int j = 0; j < count / 4; j += 4) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<T>(sums[4 * (j + i) + 2 * half], sums[4 * (j + i) + 2 * half + 1]);
    }
    transpose(words, static_cast<unsigned>(lane));
    const int column = (j + lane % 4) * 8;
    if (exists && column < width) {
      *reinterpret_cast<uint4*>(row + column) = {words[0], words[1], words[2], words[3]};
    }
  }
}

}  // namespace cudarelu::ops::attention::sm90

// Matrices of two-byte elements in shared memory, as the warps of attention read and write them.
#pragma once

#include <cstdint>

#include "cuda/gemm/mma.cuh"
#include "cudarelu/detail/cuda/async_copy.cuh"
#include "cudarelu/types.h"
#include "ops/attention/arithmetic.cuh"

namespace cudarelu::ops::attention {

/// The layout of a matrix whose lines have `width` elements. The vectors of 16 bytes of a line are
/// permuted, so that one vector of each of 8 neighbouring lines is in banks of its own. An address
/// in a line, exclusive-or 16 v, is that of the vector whose number differs in the bits of v.
template <int width>
struct SwizzledMatrix {
  static_assert(width == 32 || width % 64 == 0);
  static constexpr int pitch = 2 * width;  // bytes
  static constexpr int vectors = width / 8;

  __device__ __forceinline__ static int offset(int line, int vector) {
    return line * pitch + 16 * (vector ^ (width == 32 ? line / 2 % 4 : line % 8));
  }

  /// The offset that this lane gives load_matrices() of 16 by 16 elements. The second matrix of 8
  /// by 8 is below the first one, or beside it. Rows of a, and columns of b if b is transposed,
  /// that are lines, and the depth if it is, lead to `below` for a and a transposed b.
  template <bool below>
  __device__ __forceinline__ static int offset_of_lane(int lane) {
    return below ? offset(lane % 16, lane / 16) : offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }

  /// Starts the copy of `lines` lines by the block, which are `stride` elements apart; zeros follow
  /// the first `left` lines, and the first `columns` elements of a line.
  template <int lines, int threads, class T>
  __device__ __forceinline__ static void copy(int thread, char* to, const T* from, int stride,
                                              int left, int columns) {
    constexpr int at_a_time = threads / vectors;
    static_assert(threads % vectors == 0 && lines % at_a_time == 0 && at_a_time % 8 == 0);
    const int line = thread / vectors;
    const int vector = thread % vectors;
    const bool inside = 8 * vector < columns;
    to += offset(line, vector);
    from += std::int64_t{line} * stride + 8 * vector;
#pragma unroll
    for (int i = 0; i < lines; i += at_a_time) {
      gpu::copy_async<16>(to + i * pitch, from, inside && line + i < left);
      from += std::int64_t{at_a_time} * stride;
    }
  }
};

/// Transposes a matrix of 4 by 4 whose rows are in 4 neighbouring lanes.
__device__ __forceinline__ void transpose(unsigned (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned& low = words[distance == 1 ? 2 * i : i];
      unsigned& high = words[distance == 1 ? 2 * i + 1 : i + 2];
      const unsigned other = __shfl_xor_sync(0xffffffff, upper ? low : high, distance);
      (upper ? low : high) = other;
    }
  }
}

/// Writes `factor` times the sums of a warp, rows of 16 bytes at a time, to the first `left` rows,
/// which are `stride` elements apart, and `columns` columns of a matrix, from column `first` on.
template <class T, int rows, int tiles>
__device__ __forceinline__ void write(const float (&sums)[rows][tiles][4], float factor, T* to,
                                      int stride, int left, int columns, int first) {
  static_assert(tiles % 4 == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 2 * rows; ++i) {
    const int row = 8 * i + lane / 4;
#pragma unroll
    for (int j = 0; j < tiles; j += 4) {
      unsigned words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float (&own)[4] = sums[i / 2][j + k];
        words[k] = pack<T>(own[i % 2 * 2] * factor, own[i % 2 * 2 + 1] * factor);
      }
      transpose(words);
      const int column = first + 8 * (j + lane % 4);
      if (row < left && column < columns) {
        *reinterpret_cast<uint4*>(to + std::int64_t{row} * stride + column) = {words[0], words[1],
                                                                               words[2], words[3]};
      }
    }
  }
}

}  // namespace cudarelu::ops::attention

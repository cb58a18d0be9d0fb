// Matrices in shared memory whose lines are swizzled, so that warps read and write them without
// bank conflicts.
#pragma once

#include <cstdint>

#include "cudarelu/detail/cuda/async_copy.cuh"

namespace cudarelu::gpu {

/// The offset in bytes of a vector of 16 bytes in a line of 64 or of at least 128 bytes. The
/// vectors of a line are permuted, so that one vector of each of 8 neighbouring lines is in banks
/// of its own; lines of 128 bytes are swizzled as by the copy engine. An address in a line,
/// exclusive-or 16 v, is that of the vector whose number differs in the bits of v.
template <int line_bytes, class Index>
__device__ __forceinline__ constexpr Index swizzled(Index line, Index vector) {
  return line * line_bytes + (vector ^ (line_bytes >= 128 ? line % 8 : line / 2 % 4)) * 16;
}

/// A matrix of two-byte elements whose lines have `width` elements.
template <int width>
struct SwizzledMatrix {
  static_assert(width == 32 || width % 64 == 0);
  static constexpr int pitch = 2 * width;  // bytes
  static constexpr int vectors = width / 8;

  __device__ __forceinline__ static int offset(int line, int vector) {
    return swizzled<pitch>(line, vector);
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
      copy_async<16>(to + i * pitch, from, inside && line + i < left);
      from += std::int64_t{at_a_time} * stride;
    }
  }
};

}  // namespace cudarelu::gpu

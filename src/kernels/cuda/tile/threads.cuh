// How the threads of a block share a tile, and wait for each other.
#pragma once

namespace cudarelu::gpu {

/// The row and the column of a thread among the 4 by 8 of a warp, which read words for their rows
/// and columns. Pairs of neighbours, and pairs of pairs, read the same words: a warp needs few
/// accesses.
template <class Index>
__device__ __forceinline__ constexpr Index row_of_thread(Index thread) {
  return (thread & 1) | (thread >> 3 & 2);
}
template <class Index>
__device__ __forceinline__ constexpr Index column_of_thread(Index thread) {
  return thread >> 1 & 7;
}

/// The column of step p in rows of `size`, which are traversed alternately right and left: of the
/// two factors of a product, one is that of the product before, and is not read again.
__device__ constexpr int back_and_forth(int p, int size) {
  return p / size % 2 == 0 ? p % size : size - 1 - p % size;
}

/// Waits until `count` threads have come to a barrier of the block; 0 is that of __syncthreads().
template <int count>
__device__ __forceinline__ void wait_at(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(count) : "memory");
}

/// Comes to a barrier, and does not wait.
template <int count>
__device__ __forceinline__ void arrive_at(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(count) : "memory");
}

}  // namespace cudarelu::gpu

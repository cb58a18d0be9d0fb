// Copies from global to shared memory: asynchronous from compute capability 8.0 on.
#pragma once

#include <type_traits>

namespace cudarelu::gpu {

/// Copies the first `size` of `bytes` bytes (4, 8 or 16, with that alignment) and writes zeros for
/// the others, which it does not read.
template <int bytes>
__device__ __forceinline__ void copy_async_part(void* to, const void* from, int size) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(size)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(address), "l"(from),
                 "r"(size), "n"(bytes)
                 : "memory");
  }
#else
  using Word =
      std::conditional_t<bytes == 16, uint4, std::conditional_t<bytes == 8, uint2, unsigned> >;
  if (size == bytes) {
    *static_cast<Word*>(to) = *static_cast<const Word*>(from);
  } else {
    *static_cast<Word*>(to) = Word{};
    for (int i = 0; i < size; ++i) static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
  }
#endif
}

/// Copies 4, 8 or 16 bytes, with that alignment, or writes zeros and does not read if not `valid`.
template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  copy_async_part<bytes>(to, from, valid ? bytes : 0);
}

/// Ends a group of copies of this thread.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most the last `left` groups of this thread are incomplete.
template <int left>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

}  // namespace cudarelu::gpu

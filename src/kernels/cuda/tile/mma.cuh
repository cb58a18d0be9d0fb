// The instructions with which a warp multiplies matrices on tensor cores, loads their operands from
// shared memory and rearranges the results, from compute capability 8.0 on.
#pragma once

#include <type_traits>

#include "cudarelu/detail/float16.h"

namespace cudarelu::gpu {

/// Loads four matrices of 8 lines of 16 bytes. Lane i passes the address of line i of all 32, and
/// gets word i % 4 of line i / 4 of each matrix. Transposed, for two-byte elements, it gets column
/// i / 4 of lines 2 (i % 4) and 2 (i % 4) + 1.
template <bool transposed>
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], unsigned line) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(line)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(line)
                 : "memory");
  }
}
template <bool transposed>
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], const void* line) {
  load_matrices<transposed>(words, static_cast<unsigned>(__cvta_generic_to_shared(line)));
}

/// c += a b for 16 by 8 elements and 32 bytes of k, distributed over the warp; float as TF32.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1) {
#define CUDARELU_MMA(shape_and_types)                                             \
  asm volatile("mma.sync.aligned." shape_and_types                                \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, Half>) {
    CUDARELU_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    CUDARELU_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  } else {
    CUDARELU_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  }
#undef CUDARELU_MMA
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// Rounds two numbers; the first one is in the lower half.
template <class T>
__device__ __forceinline__ unsigned pack(float first, float second) {
  unsigned both;
  if constexpr (std::is_same_v<T, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  }
  return both;
}

/// Transposes a matrix of 4 by 4 whose rows are in 4 neighbouring lanes.
__device__ __forceinline__ void transpose(unsigned (&words)[4], unsigned thread) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (thread & distance) != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned& low = words[distance == 1 ? 2 * i : i];
      unsigned& high = words[distance == 1 ? 2 * i + 1 : i + 2];
      const unsigned other = __shfl_xor_sync(0xffffffff, upper ? low : high, distance);
      (upper ? low : high) = other;
    }
  }
}

#endif

}  // namespace cudarelu::gpu

// The matrix instructions of attention on warpgroups; see cuda/gemm/wgmma.cuh.
#pragma once

#include "cuda/gemm/wgmma.cuh"

namespace cudarelu::ops::attention::sm90 {

// clang-format off
#define CUDARELU_REGISTERS_8(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), \
  "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define CUDARELU_REGISTERS_32(i) CUDARELU_REGISTERS_8(i), CUDARELU_REGISTERS_8(i + 8), \
  CUDARELU_REGISTERS_8(i + 16), CUDARELU_REGISTERS_8(i + 24)
#define CUDARELU_SCORE_64(type)                                                                    \
  asm volatile(                                                                                    \
      "{.reg .pred p; setp.ne.b32 p, %34, 0; "                                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "                              \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                        \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31}, "                                                  \
      "%32, %33, p, 1, 1, 0, 0;}"                                                                  \
      : CUDARELU_REGISTERS_32(0)                                                                   \
      : "l"(a), "l"(b), "r"(accumulate))
#define CUDARELU_SCORE_80(type)                                                                    \
  asm volatile(                                                                                    \
      "{.reg .pred p; setp.ne.b32 p, %42, 0; "                                                     \
      "wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type " "                              \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                        \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "                               \
      "%36, %37, %38, %39}, "                                                                      \
      "%40, %41, p, 1, 1, 0, 0;}"                                                                  \
      : CUDARELU_REGISTERS_32(0), CUDARELU_REGISTERS_8(32)                                         \
      : "l"(a), "l"(b), "r"(accumulate))
#define CUDARELU_SCORE_96(type)                                                                    \
  asm volatile(                                                                                    \
      "{.reg .pred p; setp.ne.b32 p, %50, 0; "                                                     \
      "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " "                              \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                        \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "                               \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "                              \
      "%48, %49, p, 1, 1, 0, 0;}"                                                                  \
      : CUDARELU_REGISTERS_32(0), CUDARELU_REGISTERS_8(32),                                        \
        CUDARELU_REGISTERS_8(40)                                                                   \
      : "l"(a), "l"(b), "r"(accumulate))
#define CUDARELU_SCORE_128(type)                                                                   \
  asm volatile(                                                                                    \
      "{.reg .pred p; setp.ne.b32 p, %66, 0; "                                                     \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "                             \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                        \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "                               \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                               \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "                               \
      "%60, %61, %62, %63}, "                                                                      \
      "%64, %65, p, 1, 1, 0, 0;}"                                                                  \
      : CUDARELU_REGISTERS_32(0), CUDARELU_REGISTERS_32(32)                                        \
      : "l"(a), "l"(b), "r"(accumulate))
#define CUDARELU_ADD_64(type)                                                                      \
  asm volatile(                                                                                    \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "                              \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                        \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31}, "                                                  \
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                                     \
      : CUDARELU_REGISTERS_32(0)                                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define CUDARELU_ADD_128(type)                                                                     \
  asm volatile(                                                                                    \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "                             \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                        \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "                               \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                               \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "                               \
      "%60, %61, %62, %63}, "                                                                      \
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                                     \
      : CUDARELU_REGISTERS_32(0), CUDARELU_REGISTERS_32(32)                                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define CUDARELU_ADD_256(type)                                                                     \
  asm volatile(                                                                                    \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " "                             \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                        \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "                               \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                               \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "                               \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "                               \
      "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "                               \
      "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                               \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "                       \
      "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "                   \
      "%120, %121, %122, %123, %124, %125, %126, %127}, "                                          \
      "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"                                                \
      : CUDARELU_REGISTERS_32(0), CUDARELU_REGISTERS_32(32),                                       \
        CUDARELU_REGISTERS_32(64), CUDARELU_REGISTERS_32(96)                                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// clang-format on

/// Adds the product of 64 rows and `columns` columns, of depth 16, to `sums`, or sets them if not
/// `accumulate`. Both operands are stored with the depth in a line: queries and keys, for scores.
template <class T, int columns>
__device__ __forceinline__ void multiply(float (&sums)[columns / 2], std::uint64_t a,
                                         std::uint64_t b, int accumulate) {
  constexpr bool half = std::is_same_v<T, Half>;
  static_assert(columns == 64 || columns == 80 || columns == 96 || columns == 128);
  if constexpr (columns == 64) {
    if constexpr (half) CUDARELU_SCORE_64("f16");
    if constexpr (!half) CUDARELU_SCORE_64("bf16");
  } else if constexpr (columns == 80) {
    if constexpr (half) CUDARELU_SCORE_80("f16");
    if constexpr (!half) CUDARELU_SCORE_80("bf16");
  } else if constexpr (columns == 96) {
    if constexpr (half) CUDARELU_SCORE_96("f16");
    if constexpr (!half) CUDARELU_SCORE_96("bf16");
  } else {
    if constexpr (half) CUDARELU_SCORE_128("f16");
    if constexpr (!half) CUDARELU_SCORE_128("bf16");
  }
}

/// Adds the product of the weights of 16 keys and their values, of `columns` columns. Thread t of
/// the warpgroup holds in a[2 j + h] the weights of row t / 32 * 16 + t % 32 / 4 + 8 h and keys
/// 8 j + t % 4 * 2 and 8 j + t % 4 * 2 + 1: what it holds of the scores. A line of values is a key.
template <class T, int columns>
__device__ __forceinline__ void add_product(float (&sums)[columns / 2], const unsigned* a,
                                            std::uint64_t b) {
  constexpr bool half = std::is_same_v<T, Half>;
  static_assert(columns == 64 || columns == 128 || columns == 256);
  if constexpr (columns == 64) {
    if constexpr (half) CUDARELU_ADD_64("f16");
    if constexpr (!half) CUDARELU_ADD_64("bf16");
  } else if constexpr (columns == 128) {
    if constexpr (half) CUDARELU_ADD_128("f16");
    if constexpr (!half) CUDARELU_ADD_128("bf16");
  } else {
    if constexpr (half) CUDARELU_ADD_256("f16");
    if constexpr (!half) CUDARELU_ADD_256("bf16");
  }
}

#undef CUDARELU_ADD_256
#undef CUDARELU_ADD_128
#undef CUDARELU_ADD_64
#undef CUDARELU_SCORE_128
#undef CUDARELU_SCORE_96
#undef CUDARELU_SCORE_80
#undef CUDARELU_SCORE_64
#undef CUDARELU_REGISTERS_32
#undef CUDARELU_REGISTERS_8

}  // namespace cudarelu::ops::attention::sm90

// The matrix instruction of a warpgroup, of compute capability 9.0a, on tiles in shared memory.
#pragma once

#include <cstdint>

#include "cudarelu/types.h"

namespace cudarelu::gpu::wgmma {

/// Tiles in shared memory consist of panels: lines of 128 bytes, 64 elements, in the copy engine's
/// swizzle of 128 bytes. With `depth_major` a line is a row of the matrix, of depth 64. Else a
/// panel has 64 lines, a line is one step of the depth for 64 rows, and more rows have more panels.
inline constexpr int panel_columns = 64;
inline constexpr int line_bytes = 128;
inline constexpr int panel_bytes = 64 * line_bytes;

/// The descriptor of an operand whose first panel begins at `address`. The distance of panels is
/// used only if not depth_major.
__device__ __forceinline__ std::uint64_t descriptor(const void* address,
                                                    int distance = panel_bytes) {
  const auto next_panel = static_cast<std::uint64_t>(distance / 16);
  constexpr std::uint64_t next_eight_lines = 8 * line_bytes / 16;
  constexpr std::uint64_t swizzle_128_bytes = 1;
  const auto at = static_cast<std::uint64_t>(__cvta_generic_to_shared(address));
  return (at & 0x3ffff) >> 4 | next_panel << 16 | next_eight_lines << 32 | swizzle_128_bytes << 62;
}

/// The distance of 16 steps of the depth, in the descriptor's units.
template <bool depth_major>
inline constexpr std::uint64_t depth_step = (depth_major ? 32 : 16 * line_bytes) / 16;

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all groups except the last `pending` ones.
template <int pending>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// clang-format off
// The first n operands of an instruction, which are sums, and the sums.
#define CUDARELU_NUMBERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11" \
  ", %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23" \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define CUDARELU_NUMBERS_40 CUDARELU_NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define CUDARELU_NUMBERS_48 CUDARELU_NUMBERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define CUDARELU_NUMBERS_64 \
  CUDARELU_NUMBERS_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59" \
  ", %60, %61, %62, %63"
#define CUDARELU_NUMBERS_96 \
  CUDARELU_NUMBERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75" \
  ", %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87" \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define CUDARELU_NUMBERS_128 \
  CUDARELU_NUMBERS_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107" \
  ", %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"
#define CUDARELU_SUMS_8(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), \
  "+f"(sums[i + 4]), "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define CUDARELU_SUMS_32 CUDARELU_SUMS_8(0), CUDARELU_SUMS_8(8), CUDARELU_SUMS_8(16), \
  CUDARELU_SUMS_8(24)
#define CUDARELU_SUMS_40 CUDARELU_SUMS_32, CUDARELU_SUMS_8(32)
#define CUDARELU_SUMS_48 CUDARELU_SUMS_40, CUDARELU_SUMS_8(40)
#define CUDARELU_SUMS_64 CUDARELU_SUMS_48, CUDARELU_SUMS_8(48), CUDARELU_SUMS_8(56)
#define CUDARELU_SUMS_96 CUDARELU_SUMS_64, CUDARELU_SUMS_8(64), CUDARELU_SUMS_8(72), \
  CUDARELU_SUMS_8(80), CUDARELU_SUMS_8(88)
#define CUDARELU_SUMS_128 CUDARELU_SUMS_96, CUDARELU_SUMS_8(96), CUDARELU_SUMS_8(104), \
  CUDARELU_SUMS_8(112), CUDARELU_SUMS_8(120)
#define CUDARELU_WGMMA(columns, type) \
  "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " "
// i to m are the numbers of the operands after the sums.
#define CUDARELU_MULTIPLY(type, columns, count, i, j, k, l, m)                                     \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #k ", 0; " CUDARELU_WGMMA(columns, type)          \
               "{" CUDARELU_NUMBERS_##count "}, %" #i ", %" #j ", p, 1, 1, %" #l ", %" #m ";}"     \
               : CUDARELU_SUMS_##count                                                             \
               : "l"(a), "l"(b), "r"(accumulate), "n"(!a_depth_major), "n"(!b_depth_major))
#define CUDARELU_ADD_PRODUCT(type, columns, count, i, j, k, l, m)                                  \
  asm volatile(CUDARELU_WGMMA(columns, type) "{" CUDARELU_NUMBERS_##count "}, "                    \
               "{%" #i ", %" #j ", %" #k ", %" #l "}, %" #m ", 1, 1, 1, 1;"                        \
               : CUDARELU_SUMS_##count                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define CUDARELU_OF_TYPE(instruction, ...)                                                         \
  if constexpr (std::is_same_v<T, Half>) instruction("f16", __VA_ARGS__);                          \
  if constexpr (!std::is_same_v<T, Half>) instruction("bf16", __VA_ARGS__)
// clang-format on

/// Adds the product of 64 rows and `columns` columns, of depth 16, to `sums`, or sets them if not
/// `accumulate`. Thread t of the warpgroup holds in sums[4 j + 2 h + i] the element at row
/// t / 32 * 16 + t % 32 / 4 + 8 h, column 8 j + t % 4 * 2 + i.
template <class T, int columns, bool a_depth_major, bool b_depth_major>
__device__ __forceinline__ void multiply(float (&sums)[columns / 2], std::uint64_t a,
                                         std::uint64_t b, int accumulate) {
  if constexpr (columns == 64) {
    CUDARELU_OF_TYPE(CUDARELU_MULTIPLY, 64, 32, 32, 33, 34, 35, 36);
  } else if constexpr (columns == 80) {
    CUDARELU_OF_TYPE(CUDARELU_MULTIPLY, 80, 40, 40, 41, 42, 43, 44);
  } else if constexpr (columns == 96) {
    CUDARELU_OF_TYPE(CUDARELU_MULTIPLY, 96, 48, 48, 49, 50, 51, 52);
  } else if constexpr (columns == 128) {
    CUDARELU_OF_TYPE(CUDARELU_MULTIPLY, 128, 64, 64, 65, 66, 67, 68);
  } else if constexpr (columns == 192) {
    CUDARELU_OF_TYPE(CUDARELU_MULTIPLY, 192, 96, 96, 97, 98, 99, 100);
  } else {
    static_assert(columns == 256);
    CUDARELU_OF_TYPE(CUDARELU_MULTIPLY, 256, 128, 128, 129, 130, 131, 132);
  }
}

/// The same with the rows of a in registers, as a product leaves them: thread t holds in
/// a[2 j + h] the pair at row t / 32 * 16 + t % 32 / 4 + 8 h and depths 8 j + t % 4 * 2 and the
/// next. A line of b is one step of the depth.
template <class T, int columns>
__device__ __forceinline__ void add_product(float (&sums)[columns / 2], const unsigned* a,
                                            std::uint64_t b) {
  if constexpr (columns == 64) {
    CUDARELU_OF_TYPE(CUDARELU_ADD_PRODUCT, 64, 32, 32, 33, 34, 35, 36);
  } else if constexpr (columns == 128) {
    CUDARELU_OF_TYPE(CUDARELU_ADD_PRODUCT, 128, 64, 64, 65, 66, 67, 68);
  } else {
    static_assert(columns == 256);
    CUDARELU_OF_TYPE(CUDARELU_ADD_PRODUCT, 256, 128, 128, 129, 130, 131, 132);
  }
}

#undef CUDARELU_OF_TYPE
#undef CUDARELU_ADD_PRODUCT
#undef CUDARELU_MULTIPLY
#undef CUDARELU_WGMMA
#undef CUDARELU_SUMS_128
#undef CUDARELU_SUMS_96
#undef CUDARELU_SUMS_64
#undef CUDARELU_SUMS_48
#undef CUDARELU_SUMS_40
#undef CUDARELU_SUMS_32
#undef CUDARELU_SUMS_8
#undef CUDARELU_NUMBERS_128
#undef CUDARELU_NUMBERS_96
#undef CUDARELU_NUMBERS_64
#undef CUDARELU_NUMBERS_48
#undef CUDARELU_NUMBERS_40
#undef CUDARELU_NUMBERS_32

}  // namespace cudarelu::gpu::wgmma

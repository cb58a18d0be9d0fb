// The innermost loop of matrix products on the CPU: the product of a panel, whose elements are in
// the order in which it reads them, and another panel, as a tile that it keeps in registers. The
// first may be rows instead. The method is that of Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (2008).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "cudarelu/cpu/vectorised.h"
#include "cudarelu/status.h"
#include "cudarelu/types.h"

namespace cudarelu::cpu {
namespace detail {

/// A tile of `rows` rows and two vectors; multiply_add() is one instruction where the CPU has it.
template <class T>
struct AnyCpu {
  using Vector [[gnu::vector_size(16)]] = T;
  static constexpr int rows = 4;
  static void load(const T* from, Vector& to) { __builtin_memcpy(&to, from, sizeof(Vector)); }
  static void store(const Vector& from, T* to) { __builtin_memcpy(to, &from, sizeof(Vector)); }
  static void multiply_add(Vector& sum, T a, const Vector& b) { sum += a * b; }
};

#if defined(__x86_64__) && defined(__GNUC__)

template <class T>
struct Avx2 {
  using Vector [[gnu::vector_size(32)]] = T;
  static constexpr int rows = 6;
  [[gnu::target("avx2,fma")]] static void load(const T* from, Vector& to) {
    if constexpr (sizeof(T) == 4) to = _mm256_loadu_ps(from);
    if constexpr (sizeof(T) == 8) to = _mm256_loadu_pd(from);
  }
  [[gnu::target("avx2,fma")]] static void store(const Vector& from, T* to) {
    if constexpr (sizeof(T) == 4) _mm256_storeu_ps(to, from);
    if constexpr (sizeof(T) == 8) _mm256_storeu_pd(to, from);
  }
  [[gnu::target("avx2,fma")]] static void multiply_add(Vector& sum, T a, const Vector& b) {
    if constexpr (sizeof(T) == 4) sum = _mm256_fmadd_ps(_mm256_set1_ps(a), b, sum);
    if constexpr (sizeof(T) == 8) sum = _mm256_fmadd_pd(_mm256_set1_pd(a), b, sum);
  }
};

template <class T>
struct Avx512 {
  using Vector [[gnu::vector_size(64)]] = T;
  static constexpr int rows = 12;
  [[gnu::target("avx512f")]] static void load(const T* from, Vector& to) {
    if constexpr (sizeof(T) == 4) to = _mm512_loadu_ps(from);
    if constexpr (sizeof(T) == 8) to = _mm512_loadu_pd(from);
  }
  [[gnu::target("avx512f")]] static void store(const Vector& from, T* to) {
    if constexpr (sizeof(T) == 4) _mm512_storeu_ps(to, from);
    if constexpr (sizeof(T) == 8) _mm512_storeu_pd(to, from);
  }
  [[gnu::target("avx512f")]] static void multiply_add(Vector& sum, T a, const Vector& b) {
    if constexpr (sizeof(T) == 4) sum = _mm512_fmadd_ps(_mm512_set1_ps(a), b, sum);
    if constexpr (sizeof(T) == 8) sum = _mm512_fmadd_pd(_mm512_set1_pd(a), b, sum);
  }
};

#endif

/// tile[rows][columns] = or += the product of a and a panel of b, where a is a panel, or has rows
/// of as many elements as the tile if `of_rows`; only the first `rows` rows of the tile. Each
/// vector is loaded and stored on its own: an array that is initialised or copied as a whole is one
/// in memory.
template <class Cpu, bool of_rows, int rows, class T>
inline void multiply(const T* a, const T* b, std::int64_t k, T* tile, bool adds) {
  typename Cpu::Vector sums[rows][2];
  constexpr int lanes = sizeof(sums[0][0]) / sizeof(T);
  constexpr int step = of_rows ? 1 : Cpu::rows;              // from an element of a row to the next
  constexpr std::ptrdiff_t apart = of_rows ? 2 * lanes : 1;  // from a row to the next
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
    if (adds) {
      Cpu::load(tile + 2 * row * lanes, sums[row][0]);
      Cpu::load(tile + (2 * row + 1) * lanes, sums[row][1]);
    } else {
      sums[row][0] = typename Cpu::Vector{};
      sums[row][1] = typename Cpu::Vector{};
    }
  }
  for (std::int64_t i = 0; i < k; ++i, a += step, b += 2 * lanes) {
    typename Cpu::Vector b0;
    typename Cpu::Vector b1;
    Cpu::load(b, b0);
    Cpu::load(b + lanes, b1);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
      Cpu::multiply_add(sums[row][0], a[row * apart], b0);
      Cpu::multiply_add(sums[row][1], a[row * apart], b1);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
    Cpu::store(sums[row][0], tile + 2 * row * lanes);
    Cpu::store(sums[row][1], tile + (2 * row + 1) * lanes);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
template <class T, bool of_rows, int rows>
[[gnu::target("avx512f"), gnu::flatten]] void multiply_with_avx512(const T* a, const T* b,
                                                                   std::int64_t k, T* tile,
                                                                   bool adds) {
  multiply<Avx512<T>, of_rows, rows>(a, b, k, tile, adds);
}
template <class T, bool of_rows, int rows>
[[gnu::target("avx2,fma"), gnu::flatten]] void multiply_with_avx2(const T* a, const T* b,
                                                                  std::int64_t k, T* tile,
                                                                  bool adds) {
  multiply<Avx2<T>, of_rows, rows>(a, b, k, tile, adds);
}
#endif

}  // namespace detail

/// The innermost loop for the CPU that runs it, and the size of its tile.
template <class T>
struct Tile {
  using Multiply = void(const T* a, const T* b, std::int64_t k, T* tile, bool adds);
  int rows;
  int columns;
  Multiply* multiply;
  Multiply* multiply_few;   // the first third of the rows
  Multiply* multiply_rows;  // where a is a matrix of rows of `columns` elements each
};

template <class T>
const Tile<T>& tile_for_cpu() {
  static const Tile<T> tile = [] {
#if defined(__x86_64__) && defined(__GNUC__)
    if (has_avx512()) {
      return Tile<T>{12, 128 / sizeof(T), detail::multiply_with_avx512<T, false, 12>,
                     detail::multiply_with_avx512<T, false, 4>,
                     detail::multiply_with_avx512<T, true, 12>};
    }
    if (has_avx2()) {
      return Tile<T>{6, 64 / sizeof(T), detail::multiply_with_avx2<T, false, 6>,
                     detail::multiply_with_avx2<T, false, 2>,
                     detail::multiply_with_avx2<T, true, 6>};
    }
#endif
    using detail::AnyCpu;
    return Tile<T>{4, 32 / sizeof(T), detail::multiply<AnyCpu<T>, false, 4, T>,
                   detail::multiply<AnyCpu<T>, false, 1, T>,
                   detail::multiply<AnyCpu<T>, true, 4, T>};
  }();
  return tile;
}

/// Calls f(columns) with the columns of the CPU's tile as a constant, std::integral_constant.
template <class T, class F>
Status with_tile_columns(const F& f) {
  switch (static_cast<std::size_t>(tile_for_cpu<T>().columns) * sizeof(T)) {
    case 128:
      return f(std::integral_constant<std::int64_t, 128 / sizeof(T)>{});
    case 64:
      return f(std::integral_constant<std::int64_t, 64 / sizeof(T)>{});
    default:
      return f(std::integral_constant<std::int64_t, 32 / sizeof(T)>{});
  }
}

/// The instructions of the CPUs whose tile has this number of columns.
template <class T, std::int64_t columns>
inline constexpr Isa isa_of_tile = columns * sizeof(T) == 128  ? Isa::avx512
                                   : columns * sizeof(T) == 64 ? Isa::avx2
                                                               : Isa::unknown;

/// Like vectorised(), compiled only for the CPUs whose tile has this number of columns.
template <class T, std::int64_t columns, class F>
void vectorised_for_tile(const F& f) {
#if defined(__x86_64__) && defined(__GNUC__)
  if constexpr (isa_of_tile<T, columns> == Isa::avx512) return detail::run_with_avx512(f);
  if constexpr (isa_of_tile<T, columns> == Isa::avx2) return detail::run_with_avx2(f);
#endif
  f();
}

/// The rows of the tile that has this number of columns.
template <class T, std::int64_t columns>
inline constexpr std::int64_t rows_of_tile = isa_of_tile<T, columns> == Isa::avx512 ? 12
                                             : isa_of_tile<T, columns> == Isa::avx2 ? 6
                                                                                    : 4;

inline std::int64_t parts(std::int64_t size, std::int64_t part) { return (size + part - 1) / part; }

/// The most elements of a tile, in bytes: 12 rows of two vectors of AVX-512.
inline constexpr std::size_t tile_bytes = std::size_t{12} * 128;

/// to[column * to_stride + row] = from[row * from_stride + column]. In float32, four by four in
/// registers.
template <class T, class C>
inline void transpose(const T* from, std::int64_t from_stride, std::int64_t rows,
                      std::int64_t columns, C* to, std::int64_t to_stride) {
  std::int64_t row = 0;
#if __has_builtin(__builtin_shufflevector)
  if constexpr (std::is_same_v<T, float> && std::is_same_v<C, float>) {
    using Vector [[gnu::vector_size(16)]] = float;
    for (; row + 4 <= rows; row += 4) {
      const float* const source = from + row * from_stride;
      std::int64_t column = 0;
      for (; column + 4 <= columns; column += 4) {
        Vector of_row[4];
        for (int i = 0; i < 4; ++i) {
          __builtin_memcpy(&of_row[i], source + i * from_stride + column, sizeof(Vector));
        }
        const Vector low01 = __builtin_shufflevector(of_row[0], of_row[1], 0, 4, 1, 5);
        const Vector low23 = __builtin_shufflevector(of_row[2], of_row[3], 0, 4, 1, 5);
        const Vector high01 = __builtin_shufflevector(of_row[0], of_row[1], 2, 6, 3, 7);
        const Vector high23 = __builtin_shufflevector(of_row[2], of_row[3], 2, 6, 3, 7);
        const Vector of_column[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                                     __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                                     __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                                     __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
        for (int i = 0; i < 4; ++i) {
          __builtin_memcpy(to + (column + i) * to_stride + row, &of_column[i], sizeof(Vector));
        }
      }
      for (; column < columns; ++column) {
        for (int i = 0; i < 4; ++i) {
          to[column * to_stride + row + i] = source[i * from_stride + column];
        }
      }
    }
  }
#endif
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t i = row; i < rows; ++i) {
      to[column * to_stride + i] = load(from[i * from_stride + column]);
    }
  }
}

/// Copies a matrix of `lines` lines and `steps` steps to panels of `width` lines, in which the
/// elements of a step are next to each other. The last panel is filled with zeros.
template <class T, class C>
void pack(const T* from, std::int64_t line_stride, std::int64_t step_stride, std::int64_t lines,
          std::int64_t steps, std::int64_t width, C* panels) {
  for (std::int64_t first = 0; first < lines; first += width) {
    C* const to = panels + first * steps;
    const T* const source = from + first * line_stride;
    const std::int64_t count = std::min(width, lines - first);
    const auto copy = [&](std::int64_t n) {
      if (step_stride == 1) return transpose(source, line_stride, n, steps, to, width);
      for (std::int64_t i = 0; i < steps; ++i) {
        for (std::int64_t line = 0; line < n; ++line) {
          to[i * width + line] = load(source[line * line_stride + i * step_stride]);
        }
      }
    };
    if (count == width) {
      copy(width);  // a constant for some callers
    } else {
      std::fill_n(to, steps * width, C{});
      copy(count);
    }
  }
}

}  // namespace cudarelu::cpu

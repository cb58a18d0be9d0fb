// The innermost loop of matrix products on the CPU: the product of a panel, whose elements are in
// the order in which it reads them, and another panel, as a tile that it keeps in registers. The
// first may be rows instead. The method is that of Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (2008).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cudarelu/detail/cpu/vectorised.h"
#include "cudarelu/detail/status.h"
#include "cudarelu/types.h"

namespace cudarelu::cpu {

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

/// For float and double.
template <class T>
const Tile<T>& tile_for_cpu();

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
/// elements of a step are next to each other. The last panel is filled with zeros. One of the
/// strides is 1.
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
          to[i * width + line] = load(source[line + i * step_stride]);
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

// Blocks of the operands are copied to panels, in the order in which the innermost loop reads them;
// it keeps a tile of the result in registers. The method is that of Goto and van de Geijn, "Anatomy
// of High-Performance Matrix Multiplication" (2008).

#include "cpu/plain_gemm.h"

#include <algorithm>
#include <array>
#include <string>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "cudarelu/cpu/vectorised.h"
#include "cudarelu/types.h"

namespace cudarelu::cpu {
namespace {

/// The steps of k between two writes of a tile.
constexpr std::int64_t depth = 320;

/// A tile of `rows` rows and two vectors; multiply_add() is one instruction where the CPU has it.
template <class T>
struct AnyCpu {
  using Vector [[gnu::vector_size(16)]] = T;
  static constexpr int rows = 4;
  static void load(const T* from, Vector& to) { __builtin_memcpy(&to, from, sizeof(Vector)); }
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
  [[gnu::target("avx512f")]] static void multiply_add(Vector& sum, T a, const Vector& b) {
    if constexpr (sizeof(T) == 4) sum = _mm512_fmadd_ps(_mm512_set1_ps(a), b, sum);
    if constexpr (sizeof(T) == 8) sum = _mm512_fmadd_pd(_mm512_set1_pd(a), b, sum);
  }
};

#endif

/// tile[rows][columns] = the product of a panel of a and a panel of b.
template <class Cpu, class T>
inline void multiply(const T* a, const T* b, std::int64_t k, T* tile) {
  typename Cpu::Vector sums[Cpu::rows][2] = {};
  constexpr int lanes = sizeof(sums[0][0]) / sizeof(T);
  for (std::int64_t i = 0; i < k; ++i, a += Cpu::rows, b += 2 * lanes) {
    typename Cpu::Vector b0;
    typename Cpu::Vector b1;
    Cpu::load(b, b0);
    Cpu::load(b + lanes, b1);
#pragma GCC unroll 16
    for (int row = 0; row < Cpu::rows; ++row) {
      Cpu::multiply_add(sums[row][0], a[row], b0);
      Cpu::multiply_add(sums[row][1], a[row], b1);
    }
  }
  __builtin_memcpy(tile, sums, sizeof sums);
}

#if defined(__x86_64__) && defined(__GNUC__)
template <class T>
[[gnu::target("avx512f"), gnu::flatten]] void multiply_with_avx512(const T* a, const T* b,
                                                                   std::int64_t k, T* tile) {
  multiply<Avx512<T>>(a, b, k, tile);
}
template <class T>
[[gnu::target("avx2,fma"), gnu::flatten]] void multiply_with_avx2(const T* a, const T* b,
                                                                  std::int64_t k, T* tile) {
  multiply<Avx2<T>>(a, b, k, tile);
}
#endif

/// The innermost loop for the CPU that runs it, and the size of its tile.
template <class T>
struct Tile {
  int rows;
  int columns;
  void (*multiply)(const T* a, const T* b, std::int64_t k, T* tile);
};

template <class T>
const Tile<T>& tile_for_cpu() {
  static const Tile<T> tile = [] {
#if defined(__x86_64__) && defined(__GNUC__)
    if (has_avx512()) {
      return Tile<T>{12, 128 / sizeof(T), multiply_with_avx512<T>};
    }
    if (has_avx2() && __builtin_cpu_supports("fma")) {
      return Tile<T>{6, 64 / sizeof(T), multiply_with_avx2<T>};
    }
#endif
    return Tile<T>{4, 32 / sizeof(T), multiply<AnyCpu<T>, T>};
  }();
  return tile;
}

std::int64_t parts(std::int64_t size, std::int64_t part) { return (size + part - 1) / part; }

template <class T>
class Product {
 public:
  Product(const Call& call, const Gemm& gemm)
      : call_(call),
        gemm_(gemm),
        row_panels_(parts(gemm.m, tile_.rows)),
        column_panels_(parts(gemm.n, tile_.columns)) {}

  Status run() {
    const std::int64_t deep = std::min(depth, gemm_.k);
    const std::int64_t size = deep * (row_panels_ * tile_.rows + column_panels_ * tile_.columns);
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
    a_panels_ = static_cast<T*>(call_.execution.allocate(bytes));
    if (a_panels_ == nullptr) {
      return {Status::Code::out_of_memory,
              "no workspace of " + std::to_string(bytes) + " bytes for a matrix product"};
    }
    b_panels_ = a_panels_ + deep * row_panels_ * tile_.rows;
    for (std::int64_t matrix = 0; matrix < gemm_.batch; ++matrix) {
      const T* const a = static_cast<const T*>(gemm_.a) + matrix * gemm_.m * gemm_.k;
      const T* const b = static_cast<const T*>(gemm_.b) + matrix * gemm_.k * gemm_.n;
      T* const d = static_cast<T*>(gemm_.d) + matrix * gemm_.m * gemm_.n;
      for (std::int64_t begin = 0; begin < gemm_.k; begin += depth) {
        const std::int64_t k = std::min(depth, gemm_.k - begin);
        const bool a_in_rows = !gemm_.a_transposed;
        pack(a + begin * (a_in_rows ? 1 : gemm_.m), a_in_rows ? gemm_.k : 1,
             a_in_rows ? 1 : gemm_.m, gemm_.m, k, tile_.rows, a_panels_);
        const bool b_in_rows = !gemm_.b_transposed;
        pack(b + begin * (b_in_rows ? gemm_.n : 1), b_in_rows ? 1 : gemm_.k,
             b_in_rows ? gemm_.n : 1, gemm_.n, k, tile_.columns, b_panels_);
        multiply_panels(d, k, begin == 0);
      }
    }
    return {};
  }

 private:
  /// Copies k steps of `size` lines, which are rows of a or columns of b, to panels of `width`
  /// lines. The last panel is filled with zeros.
  void pack(const T* from, std::int64_t line_stride, std::int64_t step_stride, std::int64_t size,
            std::int64_t k, std::int64_t width, T* panels) {
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (k * width));
    call_.execution.parallel_for(
        parts(size, width), grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t panel = begin; panel < end; ++panel) {
            T* const to = panels + panel * k * width;
            const std::int64_t lines = std::min(width, size - panel * width);
            const T* const first = from + panel * width * line_stride;
            if (lines < width) std::fill_n(to, k * width, T{});
            if (line_stride == 1) {
              for (std::int64_t i = 0; i < k; ++i) {
                std::copy_n(first + i * step_stride, lines, to + i * width);
              }
            } else {
              for (std::int64_t line = 0; line < lines; ++line) {
                for (std::int64_t i = 0; i < k; ++i) {
                  to[i * width + line] = first[line * line_stride + i * step_stride];
                }
              }
            }
          }
        });
  }

  /// d = or d += the product of the panels, in blocks of tiles whose panels of a fit in a cache.
  void multiply_panels(T* d, std::int64_t k, bool first) {
    const std::int64_t rows_of_block = std::max<std::int64_t>(1, 96 / tile_.rows);
    const std::int64_t columns_of_block = std::max<std::int64_t>(1, 256 / tile_.columns);
    const std::int64_t across = parts(column_panels_, columns_of_block);
    const std::int64_t blocks = parts(row_panels_, rows_of_block) * across;
    const std::int64_t work = k * rows_of_block * tile_.rows * columns_of_block * tile_.columns;
    const std::int64_t grain = std::max<std::int64_t>(1, (1 << 18) / work);
    call_.execution.parallel_for(blocks, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t row = block / across * rows_of_block;
        const std::int64_t column = block % across * columns_of_block;
        for (std::int64_t j = column; j < std::min(column + columns_of_block, column_panels_);
             ++j) {
          for (std::int64_t i = row; i < std::min(row + rows_of_block, row_panels_); ++i) {
            multiply_tile(d, i, j, k, first);
          }
        }
      }
    });
  }

  void multiply_tile(T* d, std::int64_t row_panel, std::int64_t column_panel, std::int64_t k,
                     bool first) {
    alignas(64) std::array<T, std::size_t{12} * 128 / sizeof(T)> tile;
    tile_.multiply(a_panels_ + row_panel * tile_.rows * k,
                   b_panels_ + column_panel * tile_.columns * k, k, tile.data());
    const std::int64_t row = row_panel * tile_.rows;
    const std::int64_t column = column_panel * tile_.columns;
    const std::int64_t columns = std::min<std::int64_t>(tile_.columns, gemm_.n - column);
    const T* const bias = static_cast<const T*>(gemm_.bias);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(tile_.rows, gemm_.m - row); ++i) {
      T* const to = d + (row + i) * gemm_.n + column;
      const T* const sums = tile.data() + i * tile_.columns;
      for (std::int64_t j = 0; j < columns; ++j) {
        const T before = !first ? to[j] : bias != nullptr ? bias[column + j] : T{};
        to[j] = before + sums[j];
      }
    }
  }

  const Call& call_;
  const Gemm& gemm_;
  const Tile<T>& tile_ = tile_for_cpu<T>();
  const std::int64_t row_panels_;
  const std::int64_t column_panels_;
  T* a_panels_ = nullptr;
  T* b_panels_ = nullptr;
};

}  // namespace

Status plain_gemm(const Call& call, const Gemm& gemm) {
  return gemm.dtype == DType::float32 ? Product<float>(call, gemm).run()
                                      : Product<double>(call, gemm).run();
}

}  // namespace cudarelu::cpu

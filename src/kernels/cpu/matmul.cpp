#include "cpu/matmul.h"

#include <algorithm>
#include <array>
#include <string>

#include "cpu/product_tile.h"

namespace cudarelu::cpu {
namespace {

// Blocks of the operands are copied to panels for the innermost loop of product_tile.h.

/// The steps of k between two writes of a tile.
constexpr std::int64_t depth = 320;

/// The most elements of a's panels: a may have any number of rows.
constexpr std::int64_t max_elements = 1 << 23;

template <class T>
class Product {
 public:
  Product(const Call& call, const Gemm& gemm)
      : call_(call), gemm_(gemm), column_panels_(parts(gemm.n, tile_.columns)) {}

  Status run() {
    const std::int64_t deep = std::clamp<std::int64_t>(gemm_.k, 1, depth);
    const std::int64_t strip = std::clamp<std::int64_t>(max_elements / (deep * tile_.rows), 1,
                                                        parts(gemm_.m, tile_.rows)) *
                               tile_.rows;  // rows
    const std::int64_t size = deep * (strip + column_panels_ * tile_.columns);
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
    a_panels_ = static_cast<T*>(call_.execution.allocate(bytes));
    if (a_panels_ == nullptr) {
      return {Status::Code::out_of_memory, "cannot allocate " + std::to_string(bytes) +
                                               " bytes of workspace for a matrix product"};
    }
    b_panels_ = a_panels_ + deep * strip;
    for (std::int64_t matrix = 0; matrix < gemm_.batch; ++matrix) {
      const T* const a = static_cast<const T*>(gemm_.a) + matrix * gemm_.m * gemm_.k;
      const T* const b = static_cast<const T*>(gemm_.b) + matrix * gemm_.k * gemm_.n;
      T* const d = static_cast<T*>(gemm_.d) + matrix * gemm_.m * gemm_.n;
      for (std::int64_t begin = 0; begin < gemm_.k; begin += depth) {
        const std::int64_t k = std::min(depth, gemm_.k - begin);
        const bool b_in_rows = !gemm_.b_transposed;
        pack(b + begin * (b_in_rows ? gemm_.n : 1), b_in_rows ? 1 : gemm_.k,
             b_in_rows ? gemm_.n : 1, gemm_.n, k, tile_.columns, b_panels_);
        const std::int64_t row_stride = gemm_.a_transposed ? 1 : gemm_.k;
        const std::int64_t step_stride = gemm_.a_transposed ? gemm_.m : 1;
        for (std::int64_t row = 0; row < gemm_.m; row += strip) {
          const std::int64_t rows = std::min(strip, gemm_.m - row);
          pack(a + begin * step_stride + row * row_stride, row_stride, step_stride, rows, k,
               tile_.rows, a_panels_);
          multiply_panels(d + row * gemm_.n, rows, k, begin == 0);
        }
      }
    }
    return {};
  }

 private:
  /// Copies k steps of `size` lines, which are rows of a or columns of b, to panels.
  void pack(const T* from, std::int64_t line_stride, std::int64_t step_stride, std::int64_t size,
            std::int64_t k, std::int64_t width, T* panels) {
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (k * width));
    call_.execution.parallel_for(
        parts(size, width), grain, [&](std::int64_t begin, std::int64_t end) {
          cpu::pack(from + begin * width * line_stride, line_stride, step_stride,
                    std::min(end * width, size) - begin * width, k, width,
                    panels + begin * k * width);
        });
  }

  /// d = or d += the product of the panels of some rows, in blocks of tiles whose panels of a fit
  /// in a cache.
  void multiply_panels(T* d, std::int64_t rows, std::int64_t k, bool first) {
    const std::int64_t row_panels = parts(rows, tile_.rows);
    const std::int64_t rows_of_block = std::max<std::int64_t>(1, 96 / tile_.rows);
    const std::int64_t columns_of_block = std::max<std::int64_t>(1, 256 / tile_.columns);
    const std::int64_t across = parts(column_panels_, columns_of_block);
    const std::int64_t blocks = parts(row_panels, rows_of_block) * across;
    const std::int64_t work = k * rows_of_block * tile_.rows * columns_of_block * tile_.columns;
    const std::int64_t grain = std::max<std::int64_t>(1, (1 << 18) / work);
    call_.execution.parallel_for(blocks, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t row = block / across * rows_of_block;
        const std::int64_t column = block % across * columns_of_block;
        for (std::int64_t j = column; j < std::min(column + columns_of_block, column_panels_);
             ++j) {
          for (std::int64_t i = row; i < std::min(row + rows_of_block, row_panels); ++i) {
            multiply_tile(d, rows, i, j, k, first);
          }
        }
      }
    });
  }

  void multiply_tile(T* d, std::int64_t rows, std::int64_t row_panel, std::int64_t column_panel,
                     std::int64_t k, bool first) {
    alignas(64) std::array<T, tile_bytes / sizeof(T)> tile;
    tile_.multiply(a_panels_ + row_panel * tile_.rows * k,
                   b_panels_ + column_panel * tile_.columns * k, k, tile.data(), false);
    const std::int64_t row = row_panel * tile_.rows;
    const std::int64_t column = column_panel * tile_.columns;
    const std::int64_t columns = std::min<std::int64_t>(tile_.columns, gemm_.n - column);
    const T* const bias = static_cast<const T*>(gemm_.bias);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(tile_.rows, rows - row); ++i) {
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
  const std::int64_t column_panels_;
  T* a_panels_ = nullptr;
  T* b_panels_ = nullptr;
};

}  // namespace

Status matmul(const Call& call, const Gemm& gemm) {
  return gemm.dtype == DType::float32 ? Product<float>(call, gemm).run()
                                      : Product<double>(call, gemm).run();
}

}  // namespace cudarelu::cpu

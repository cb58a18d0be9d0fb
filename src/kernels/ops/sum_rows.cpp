#include "ops/sum_rows.h"

#include <array>

#include "cudarelu/cpu/blocks.h"

namespace cudarelu::ops {
namespace {

constexpr std::int64_t strip = 1024;  // columns that are summed together: they fit the L1 cache
constexpr int group = 8;              // rows that are added to a total at once

/// x[first] + ... + x[first + count - 1], added pairwise; count is a power of 2.
template <int count, class C>
C sum_of(const std::array<const C*, group>& x, int first, std::int64_t i) {
  if constexpr (count == 1) {
    return x[first][i];
  } else {
    return sum_of<count / 2>(x, first, i) + sum_of<count / 2>(x, first + count / 2, i);
  }
}

/// Adds the sum of `rows` rows of `width` numbers, `stride` apart, to totals.
template <int rows, class T>
void add_rows(const T* x, std::int64_t stride, std::int64_t width,
              std::array<double, strip>& totals) {
  std::array<cpu::Block<Compute<T>>, rows> blocks;
  cpu::for_each_block<T, cpu::small_block_size>(width, [&](std::int64_t first, std::int64_t count) {
    std::array<const Compute<T>*, group> values;
    for (int row = 0; row < rows; ++row) {
      values[row] = cpu::read(x + row * stride + first, count, blocks[row]);
    }
    double* const sums = totals.data() + first;
    cpu::for_each_index(count, [&](std::int64_t i) { sums[i] += sum_of<rows>(values, 0, i); });
  });
}

}  // namespace

Status SumRows::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const std::int64_t columns = call.outputs[0].size();
    const std::int64_t rows = columns == 0 ? 0 : call.inputs[0].size() / columns;
    const std::int64_t grain =  // parts of rows that are long enough for prefetching
        std::max<std::int64_t>(256, 16384 / std::max<std::int64_t>(rows, 1));
    const auto sum_columns = [&](std::int64_t first, std::int64_t width) {
      std::array<double, strip> totals{};
      std::int64_t row = 0;
      for (; row + group <= rows; row += group) {
        add_rows<group>(x + row * columns + first, columns, width, totals);
      }
      for (; row < rows; ++row) add_rows<1>(x + row * columns + first, columns, width, totals);
      for (std::int64_t i = 0; i < width; ++i) {
        y[first + i] = store<T>(static_cast<Compute<T>>(totals[i]));
      }
    };
    call.execution.parallel_for(columns, grain, [&](std::int64_t begin, std::int64_t end) {
      cpu::vectorised<cpu::Width::full>([&] {
        for (std::int64_t first = begin; first < end; first += strip) {
          sum_columns(first, std::min(strip, end - first));
        }
      });
    });
    return Status();
  });
}

}  // namespace cudarelu::ops

#include "ops/sum_rows.h"

#include <algorithm>
#include <array>
#include <span>

#include "cudarelu/detail/cpu/blocks.h"
#include "cudarelu/detail/workspace.h"

namespace cudarelu::ops {
namespace {

constexpr std::int64_t strip = 1024;  // columns that are summed together: they fit the L1 cache
constexpr int group = 8;              // rows that are added to a total at once

constexpr std::int64_t rows_of_part = 256;       // at least, if there are several parts
constexpr std::int64_t columns_of_part = 16384;  // from here on, columns are enough for the threads
constexpr std::int64_t max_parts = 64;

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
    if (columns == 0) return Status();
    const std::int64_t rows = call.inputs[0].size() / columns;
    // Few columns leave most threads without work, so that parts of the rows have totals of their
    // own. Their number depends on the shape alone, and so does the order of the sum.
    const std::int64_t parts = std::clamp<std::int64_t>(
        std::min(rows / rows_of_part, columns_of_part / columns), 1, max_parts);
    double* totals_of_parts = nullptr;  // [parts, columns]
    if (parts > 1) {
      if (Status status = allocate(call, parts * columns, totals_of_parts); !status.ok()) {
        return status;
      }
    }
    const auto write = [&](std::int64_t first, std::span<const double> totals) {
      for (const double total : totals) y[first++] = store<T>(static_cast<Compute<T>>(total));
    };
    const auto sum_columns = [&](std::int64_t part, std::int64_t first, std::int64_t width) {
      std::array<double, strip> totals{};
      std::int64_t row = rows * part / parts;
      const std::int64_t end = rows * (part + 1) / parts;
      for (; row + group <= end; row += group) {
        add_rows<group>(x + row * columns + first, columns, width, totals);
      }
      for (; row < end; ++row) add_rows<1>(x + row * columns + first, columns, width, totals);
      if (parts == 1) return write(first, std::span(totals).first(static_cast<std::size_t>(width)));
      std::copy_n(totals.data(), width, totals_of_parts + part * columns + first);
    };
    const std::int64_t grain =  // rows that are long enough for prefetching, of enough elements
        std::max<std::int64_t>(std::min<std::int64_t>(256, columns),
                               16384 * parts / std::max<std::int64_t>(rows, 1));
    call.execution.parallel_for(parts * columns, grain, [&](std::int64_t begin, std::int64_t end) {
      cpu::vectorised<cpu::Width::full>([&] {
        for (std::int64_t i = begin, width = 0; i < end; i += width) {
          const std::int64_t first = i % columns;
          width = std::min({strip, columns - first, end - i});
          sum_columns(i / columns, first, width);
        }
      });
    });
    if (parts == 1) return Status();
    for (std::int64_t part = 1; part < parts; ++part) {  // at most columns_of_part additions in all
      const double* const more = totals_of_parts + part * columns;
      for (std::int64_t i = 0; i < columns; ++i) totals_of_parts[i] += more[i];
    }
    write(0, {totals_of_parts, static_cast<std::size_t>(columns)});
    return Status();
  });
}

}  // namespace cudarelu::ops

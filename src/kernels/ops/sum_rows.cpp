#include "ops/sum_rows.h"

#include <array>

#include "cpu/rows.h"

namespace cudarelu::ops {

Status SumRows::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    constexpr std::int64_t strip = 64;  // columns that a thread sums together: whole cache lines
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const std::int64_t columns = call.outputs[0].size();
    const std::int64_t rows = columns == 0 ? 0 : call.inputs[0].size() / columns;
    const std::int64_t grain = std::max(strip, 16384 / std::max<std::int64_t>(rows, 1));
    call.execution.parallel_for(columns, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin; first < end; first += strip) {
        const std::int64_t width = std::min(strip, end - first);
        std::array<double, strip> totals{};
        for (std::int64_t row = 0; row < rows; ++row) {
          const T* from = x + row * columns + first;
          for (std::int64_t i = 0; i < width; ++i) totals[i] += load(from[i]);
        }
        for (std::int64_t i = 0; i < width; ++i) {
          y[first + i] = store<T>(static_cast<Compute<T>>(totals[i]));
        }
      }
    });
    return Status();
  });
}

}  // namespace cudarelu::ops

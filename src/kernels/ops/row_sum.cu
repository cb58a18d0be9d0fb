#include <bit>

#include "cudarelu/detail/cuda/rows.cuh"
#include "ops/row_mean.h"
#include "ops/row_sum.h"

namespace cudarelu::ops {
namespace {

template <class T, class Rows>
__global__ void __launch_bounds__(Rows::max_threads)
    row_sum(gpu::RowInputs<T, 1> x, T* y, std::int64_t rows, std::int64_t columns, Compute<T> scale,
            Compute<T> divisor) {
  using C = Compute<T>;
  gpu::write_from_sum(
      Rows(x, rows, columns), y, [=](const auto& part, int i) { return part(0, i) * scale; },
      [=](const auto&, int, C total) { return total / divisor; });
}

/// The sum of each row, multiplied by `scale` before and divided by `divisor` after.
Status scaled_sums(const Call& call, double scale, double divisor) {
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch_rows<T, 1>(
        call, {}, []<class Rows>(TypeTag<Rows>) { return row_sum<T, Rows>; },
        static_cast<Compute<T>>(scale), static_cast<Compute<T>>(divisor));
  });
}

}  // namespace

Status RowSum::cuda(const Call& call) { return scaled_sums(call, 1, 1); }

Status RowMean::cuda(const Call& call) {
  // A power of two, which changes no bit of normal terms, so that the sum does not overflow.
  const auto columns = static_cast<std::uint64_t>(call.inputs[0].shape.back());
  const double scale = 1 / static_cast<double>(std::bit_ceil(columns));
  return scaled_sums(call, scale, static_cast<double>(columns) * scale);
}

}  // namespace cudarelu::ops

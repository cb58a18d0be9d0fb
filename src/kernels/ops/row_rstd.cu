#include "cudarelu/detail/cuda/moments.cuh"
#include "cudarelu/detail/cuda/rows.cuh"
#include "ops/row_rstd.h"

namespace cudarelu::ops {
namespace {

template <class T, class Rows>
__global__ void __launch_bounds__(Rows::max_threads)
    row_rstd(gpu::RowInputs<T, 1> x, T* y, std::int64_t rows, std::int64_t columns,
             Compute<T> eps) {
  using C = Compute<T>;
  gpu::write_normalised<C>(
      Rows(x, rows, columns), y, columns, eps, [](const auto&, int, const auto& normaliser) {
        // The scale is 0 for an infinite variance, and for a NaN, which the shift has, too.
        return normaliser.scale > 0 ? normaliser.scale : fabs(normaliser.shift);
      });
}

}  // namespace

Status RowRstd::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch_rows<T, 1>(
        call, {}, []<class Rows>(TypeTag<Rows>) { return row_rstd<T, Rows>; },
        static_cast<Compute<T>>(call.real(0)));
  });
}

}  // namespace cudarelu::ops

#include "cuda/rows.cuh"
#include "ops/row_mean.h"

namespace cudarelu::ops {
namespace {

template <class T, class Rows>
__global__ void __launch_bounds__(Rows::most_threads)
    row_mean(cuda::RowInputs<T, 1> x, T* y, std::int64_t rows, std::int64_t columns) {
  using C = Compute<T>;
  cuda::write_from_sum(
      Rows(x, rows, columns), y, [](const auto& part, int i) { return part(0, i); },
      [=](const auto&, int, C total) { return total / static_cast<C>(columns); });
}

}  // namespace

Status RowMean::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cuda::launch_rows<T, 1>(call,
                                   []<class Rows>(TypeTag<Rows>) { return row_mean<T, Rows>; });
  });
}

}  // namespace cudarelu::ops

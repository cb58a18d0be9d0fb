#include "cuda/rows.cuh"
#include "ops/row_sum.h"

namespace cudarelu::ops {
namespace {

template <class T, int group>
__global__ void __launch_bounds__(cuda::row_block)
    row_sum(const T* x, T* y, std::int64_t rows, std::int64_t columns) {
  cuda::wait_for_previous_kernel();
  const cuda::RowThread<group> at;
  if (at.row >= rows) return;
  const std::int64_t row = at.row * columns;
  Compute<T> total = 0;
  for (std::int64_t i = row + at.lane; i < row + columns; i += group) total += load(x[i]);
  total = cuda::sum_row<group>(total);
  for (std::int64_t i = row + at.lane; i < row + columns; i += group) y[i] = store<T>(total);
}

}  // namespace

Status RowSum::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cuda::launch_rows(call, row_sum<T, 32>, row_sum<T, cuda::row_block>,
                             static_cast<const T*>(call.inputs[0].data),
                             static_cast<T*>(call.outputs[0].data));
  });
}

}  // namespace cudarelu::ops

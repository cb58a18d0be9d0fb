#include "cuda/rows.cuh"
#include "ops/softmax_backward.h"

namespace cudarelu::ops {
namespace {

template <class T, int group>
__global__ void __launch_bounds__(cuda::row_block)
    softmax_backward(const T* grad_y, const T* y, T* grad_x, std::int64_t rows,
                     std::int64_t columns) {
  using C = Compute<T>;
  cuda::wait_for_previous_kernel();
  const cuda::RowThread<group> at;
  if (at.row >= rows) return;
  const std::int64_t row = at.row * columns;
  C dot = 0;
  for (std::int64_t i = row + at.lane; i < row + columns; i += group) {
    dot += load(grad_y[i]) * load(y[i]);
  }
  dot = cuda::sum_row<group>(dot);
  for (std::int64_t i = row + at.lane; i < row + columns; i += group) {
    grad_x[i] = store<T>(load(y[i]) * (load(grad_y[i]) - dot));
  }
}

}  // namespace

Status SoftmaxBackward::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cuda::launch_rows(call, softmax_backward<T, 32>, softmax_backward<T, cuda::row_block>,
                             static_cast<const T*>(call.inputs[0].data),
                             static_cast<const T*>(call.inputs[1].data),
                             static_cast<T*>(call.outputs[0].data));
  });
}

}  // namespace cudarelu::ops

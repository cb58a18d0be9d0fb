#include "cudarelu/detail/cuda/rows.cuh"
#include "ops/softmax_backward.h"

namespace cudarelu::ops {
namespace {

template <class T, class Rows>
__global__ void __launch_bounds__(Rows::max_threads)
    softmax_backward(gpu::RowInputs<T, 2> grad_y_and_y, T* grad_x, std::int64_t rows,
                     std::int64_t columns) {
  using C = Compute<T>;
  gpu::write_from_sum(
      Rows(grad_y_and_y, rows, columns), grad_x,
      [](const auto& part, int i) { return part(0, i) * part(1, i); },
      [](const auto& part, int i, C dot) { return part(1, i) * (part(0, i) - dot); });
}

}  // namespace

Status SoftmaxBackward::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch_rows<T, 2>(
        call, []<class Rows>(TypeTag<Rows>) { return softmax_backward<T, Rows>; });
  });
}

}  // namespace cudarelu::ops

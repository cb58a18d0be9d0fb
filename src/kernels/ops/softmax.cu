#include "cuda/rows.cuh"
#include "ops/softmax.h"

namespace cudarelu::ops {
namespace {

template <class T, int group>
__global__ void __launch_bounds__(cuda::row_block)
    softmax(const T* x, T* y, std::int64_t rows, std::int64_t columns) {
  using C = Compute<T>;
  constexpr C lowest = -std::numeric_limits<C>::infinity();
  cuda::wait_for_previous_kernel();
  const cuda::RowThread<group> at;
  if (at.row >= rows) return;
  x += at.row * columns;
  y += at.row * columns;
  const auto larger = [](C a, C b) { return a < b ? b : a; };
  C largest = lowest;
  for (std::int64_t i = at.lane; i < columns; i += group) largest = larger(largest, load(x[i]));
  largest = cuda::reduce_row<group>(largest, lowest, larger);
  C total = 0;
  for (std::int64_t i = at.lane; i < columns; i += group) total += exp(load(x[i]) - largest);
  total = cuda::sum_row<group>(total);
  for (std::int64_t i = at.lane; i < columns; i += group) {
    y[i] = store<T>(exp(load(x[i]) - largest) / total);
  }
}

}  // namespace

Status Softmax::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cuda::launch_rows(call, softmax<T, 32>, softmax<T, cuda::row_block>,
                             static_cast<const T*>(call.inputs[0].data),
                             static_cast<T*>(call.outputs[0].data));
  });
}

}  // namespace cudarelu::ops

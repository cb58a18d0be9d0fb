#include "count_above.h"

namespace my {

using namespace cudarelu;

namespace {

template <class T>
__global__ void count_above(const T* x, std::int64_t* count, std::int64_t rows,
                            std::int64_t columns, Compute<T> limit) {
  gpu::wait_for_previous_kernel();
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < columns; ++i) sum += load(x[row * columns + i]) > limit ? 1 : 0;
  count[row] = sum;
}

}  // namespace

Status CountAbove::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t rows = call.outputs[0].size();
    if (rows == 0) return Status();
    return gpu::launch(call, count_above<T>, {dim3(gpu::blocks_for(rows, 128)), dim3(128)},
                       static_cast<const T*>(call.inputs[0].data),
                       static_cast<std::int64_t*>(call.outputs[0].data), rows,
                       call.inputs[0].shape.back(), static_cast<Compute<T>>(call.real(0)));
  });
}

}  // namespace my

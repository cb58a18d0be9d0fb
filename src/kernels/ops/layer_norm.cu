#include "cudarelu/detail/cuda/moments.cuh"
#include "cudarelu/detail/cuda/rows.cuh"
#include "ops/layer_norm.h"

namespace cudarelu::ops {
namespace {

template <class T, class Rows>
__global__ void __launch_bounds__(Rows::max_threads, Rows::min_blocks)
    layer_norm(gpu::RowInputs<T, 1, 2> x_weight_and_bias, T* y, std::int64_t rows,
               std::int64_t columns, Compute<T> eps) {
  using C = Compute<T>;
  gpu::write_normalised<C>(Rows(x_weight_and_bias, rows, columns), y, columns, eps,
                           [](const auto& part, int i, const auto& normalised) {
                             return gpu::fused(normalised(part(0, i)), part(1, i), part(2, i));
                           });
}

}  // namespace

Status LayerNorm::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch_rows<T, 1, 2>(
        call, {store<T>(1), store<T>(0)},
        []<class Rows>(TypeTag<Rows>) { return layer_norm<T, Rows>; },
        static_cast<Compute<T>>(call.real(0)));
  });
}

}  // namespace cudarelu::ops

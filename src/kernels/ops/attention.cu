#include "ops/attention.h"
#include "ops/attention/cuda.cuh"
#include "ops/attention/engines.h"
#include "ops/attention_with_lse.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

/// `lse` may be null.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    attend(const T* q, const T* k, const T* v, T* y, float* lse, const __grid_constant__ Params p) {
  gpu::wait_for_previous_kernel();
  const std::int64_t row = row_of_warp();
  if (row < p.batch * p.heads * p.queries) attend_row(q, k, v, y, lse, p, row);
}

Status run(const Call& call, float* lse) {
  const Params p = params_of(call, 0);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  if (rows == 0) return {};
  for (Forward* const engine : {sm90_forward, mma_forward, tiled_forward}) {
    if (std::optional<Status> status = engine(call, p, lse)) return *std::move(status);
  }
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch(call, attend<T>, grid_of(rows), static_cast<const T*>(call.inputs[0].data),
                       static_cast<const T*>(call.inputs[1].data),
                       static_cast<const T*>(call.inputs[2].data),
                       static_cast<T*>(call.outputs[0].data), lse, p);
  });
}

}  // namespace

Status Attention::cuda(const Call& call) { return run(call, nullptr); }

Status AttentionWithLse::cuda(const Call& call) {
  return run(call, static_cast<float*>(call.outputs[1].data));
}

}  // namespace cudarelu::ops

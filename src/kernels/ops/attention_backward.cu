#include "ops/attention/engines.h"
#include "ops/attention/rows_backward.cuh"
#include "ops/attention_backward.h"
#include "ops/attention_mask_backward.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

/// The gradient of q and the slopes, or the gradient of the mask.
template <class T, bool of_mask>
__global__ void __launch_bounds__(32 * warps)
    backward_of_queries(GradientInputs<T> in, T* output, Compute<T>* slopes,
                        const __grid_constant__ Problem p) {
  cuda::wait_for_previous_kernel();
  const std::int64_t row = row_of_warp();
  if (row < p.batch * p.heads * p.queries) query_backward<T, of_mask>(in, output, slopes, p, row);
}

/// The gradients of k and v.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    backward_of_keys(GradientInputs<T> in, T* grad_k, T* grad_v, const Compute<T>* slopes,
                     const __grid_constant__ Problem p) {
  cuda::wait_for_previous_kernel();
  const std::int64_t key = row_of_warp();  // counted over the batch and the heads
  if (key < p.batch * p.kv_heads * p.keys) key_backward(in, grad_k, grad_v, slopes, p, key);
}

}  // namespace

Status AttentionBackward::cuda(const Call& call) {
  const Problem p = problem_of(call, 1);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  const std::int64_t keys = p.batch * p.kv_heads * p.keys;
  for (Backward* const engine : {hopper_backward, mma_backward, tiled_backward}) {
    if (std::optional<Status> status = engine(call, p)) return *std::move(status);
  }
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto output = [&](std::size_t i) { return static_cast<T*>(call.outputs[i].data); };
    const GradientInputs<T> in = gradient_inputs<T>(call);
    Compute<T>* slopes = nullptr;
    if (Status status = allocate(call, rows, slopes); !status.ok()) return status;
    if (rows > 0) {
      Status status = cuda::launch(call, backward_of_queries<T, false>, grid_of(rows), in,
                                   output(0), slopes, p);
      if (!status.ok()) return status;
    }
    if (keys == 0) return Status();
    return cuda::launch(call, backward_of_keys<T>, grid_of(keys), in, output(1), output(2), slopes,
                        p);
  });
}

Status AttentionMaskBackward::cuda(const Call& call) {
  const Problem p = problem_of(call, 1);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  if (rows == 0) return {};
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cuda::launch(call, backward_of_queries<T, true>, grid_of(rows), gradient_inputs<T>(call),
                        static_cast<T*>(call.outputs[0].data), static_cast<Compute<T>*>(nullptr),
                        p);
  });
}

}  // namespace cudarelu::ops

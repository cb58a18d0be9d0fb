#include "cudarelu/detail/workspace.h"
#include "ops/attention/engines.h"
#include "ops/attention/packed.cuh"
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
                        const __grid_constant__ Params p) {
  gpu::wait_for_previous_kernel();
  const std::int64_t row = row_of_warp();
  if (row < p.batch * p.heads * p.queries) query_backward<T, of_mask>(in, output, slopes, p, row);
}

/// The gradients of k and v.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    backward_of_keys(GradientInputs<T> in, T* grad_k, T* grad_v, const Compute<T>* slopes,
                     const __grid_constant__ Params p) {
  gpu::wait_for_previous_kernel();
  const std::int64_t key = row_of_warp();  // counted over the batch and the heads
  if (key < p.batch * p.kv_heads * p.keys) key_backward(in, grad_k, grad_v, slopes, p, key);
}

/// exact_lse() of each query; those of packed sequences have keys of their own.
__global__ void __launch_bounds__(32 * warps)
    write_exact_lse(const double* q, const double* k, const float* given, double* lse, bool packed,
                    Sequences sequences, Params p) {
  gpu::wait_for_previous_kernel();
  const std::int64_t row = row_of_warp();
  if (row >= p.batch * p.heads * p.queries) return;
  const Row at(p, row);
  Batch keys{0, p.keys};
  std::int64_t order = at.query;
  if (packed) {
    const std::int64_t number = batch_number(at.query, sequences.q_ends, sequences.count);
    keys = keys_of(static_cast<int>(number), sequences, p.keys);
    if (number > 0) order -= sequences.q_ends[number - 1];
  }
  if (p.is_causal) keys.end = min(keys.end, keys.begin + order + 1);
  const float own = *at.in(given, p.lse);
  const double base = own == low<float> ? 0 : own;
  const double* const query = at.in(q, p.q);
  const HeadRows<const double> rows = at.keys_in(k, p.k);
  const std::int64_t lane = threadIdx.x % 32;
  double total = 0;
  for (std::int64_t first = keys.begin; first < keys.end; first += 32) {
    double own_product = 0;
    for (std::int64_t i = 0; i < min(keys.end - first, std::int64_t{32}); ++i) {
      double product = 0;
      for (std::int64_t j = lane; j < p.width; j += 32) product += query[j] * rows[first + i][j];
      product = gpu::sum_in_warp<32>(product);
      if (i == lane) own_product = product;
    }
    const std::int64_t offset = at.offset + (first + lane) * p.mask.key_stride;
    if (first + lane < keys.end) {
      total += exp(score_of_product<double>(p, own_product, offset) - base);
    }
  }
  total = gpu::sum_in_warp<32>(total);
  if (lane == 0) *at.in(lse, p.lse) = exact_lse(own, base + log(total));
}

}  // namespace

Status attention::find_exact_lse(const Call& call, const Params& p, const Sequences* sequences,
                                 const double*& lse) {
  const std::int64_t rows = p.batch * p.heads * p.queries;
  double* exact = nullptr;
  if (Status status = allocate(call, rows, exact); !status.ok()) return status;
  lse = exact;
  if (rows == 0) return {};
  return gpu::launch(call, write_exact_lse, grid_of(rows),
                     static_cast<const double*>(call.inputs[1].data),
                     static_cast<const double*>(call.inputs[2].data),
                     static_cast<const float*>(call.inputs[5].data), exact, sequences != nullptr,
                     sequences == nullptr ? Sequences{} : *sequences, p);
}

Status AttentionBackward::cuda(const Call& call) {
  const Params p = params_of(call, 1);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  const std::int64_t keys = p.batch * p.kv_heads * p.keys;
  for (Backward* const engine : {sm90_backward, mma_backward, tiled_backward}) {
    if (std::optional<Status> status = engine(call, p)) return *std::move(status);
  }
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto output = [&](std::size_t i) { return static_cast<T*>(call.outputs[i].data); };
    GradientInputs<T> in;
    if (Status status = find_inputs(call, p, nullptr, in); !status.ok()) return status;
    Compute<T>* slopes = nullptr;
    if (Status status = allocate(call, rows, slopes); !status.ok()) return status;
    if (rows > 0) {
      Status status =
          gpu::launch(call, backward_of_queries<T, false>, grid_of(rows), in, output(0), slopes, p);
      if (!status.ok()) return status;
    }
    if (keys == 0) return Status();
    return gpu::launch(call, backward_of_keys<T>, grid_of(keys), in, output(1), output(2), slopes,
                       p);
  });
}

Status AttentionMaskBackward::cuda(const Call& call) {
  const Params p = params_of(call, 1);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  if (rows == 0) return {};
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    GradientInputs<T> in;
    if (Status status = find_inputs(call, p, nullptr, in); !status.ok()) return status;
    return gpu::launch(call, backward_of_queries<T, true>, grid_of(rows), in,
                       static_cast<T*>(call.outputs[0].data), static_cast<Compute<T>*>(nullptr), p);
  });
}

}  // namespace cudarelu::ops

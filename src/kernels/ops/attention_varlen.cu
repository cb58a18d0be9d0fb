// Attention over packed sequences: a warp for each row, where no faster kernel takes the call.
#include "ops/attention/engines.h"
#include "ops/attention/packed.cuh"
#include "ops/attention/rows_backward.cuh"
#include "ops/attention_varlen.h"
#include "ops/attention_varlen_backward.h"
#include "ops/attention_varlen_with_lse.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

/// A batch within the rows, with one row at least: `row`.
__device__ Batch around(const Batch& batch, std::int64_t row) {
  return {min(batch.begin, row), max(batch.end, row + 1)};
}

__device__ Params problem_of_sequence(const Params& p, const Batch& queries, const Batch& keys) {
  Params result = sequence_of(p, queries, keys);
  result.mask.data = nullptr;  // lets the compiler leave out what a mask needs
  return result;
}

/// Where the numbers of a sequence begin, as the kernels for one params count them, in an array
/// that has those of each sequence after those of the one before.
template <class C>
__device__ C* numbers_of(C* all, const Params& p, const Batch& queries) {
  return all + p.heads * (queries.begin - p.queries);
}

template <class T>
__device__ void write_zeros(T* row, std::int64_t columns) {
  for (std::int64_t i = threadIdx.x % 32; i < columns; i += 32) row[i] = store<T>(0);
}

/// `lse` may be null.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    attend_packed(const T* q, const T* k, const T* v, T* y, float* lse, Sequences sequences,
                  Params all) {
  gpu::wait_for_previous_kernel();
  const std::int64_t index = row_of_warp();
  if (index >= all.heads * all.queries) return;
  const std::int64_t query = index % all.queries;
  const std::int64_t head = index / all.queries;
  const std::int64_t number = batch_number(query, sequences.q_ends, sequences.count);
  if (number == sequences.count) {
    write_zeros(y + all.y.offset(0, head) + query * all.y.row, all.value_width);
    if (lse != nullptr && threadIdx.x % 32 == 0) lse[query * all.heads + head] = low<float>;
    return;
  }
  const Batch queries = around(batch_of(number, sequences.q_ends, all.queries), query);
  const Batch keys = keys_of(number, sequences, all.keys);
  const Params p = problem_of_sequence(all, queries, keys);
  const std::int64_t row = (p.heads + head) * p.queries + query - queries.begin;
  // Without a mask, a score of -infinity is one of an infinite key, whose value has the weight 0.
  attend_row<false>(q, k, v, y, lse, p, row);
}

/// The gradient of q, and for backward_of_packed_keys() the slopes and lse in another order.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    backward_of_packed_queries(GradientInputs<T> in, T* grad_q, Compute<T>* slopes, Compute<T>* lse,
                               Sequences sequences, Params all) {
  gpu::wait_for_previous_kernel();
  const std::int64_t index = row_of_warp();
  if (index >= all.heads * all.queries) return;
  const std::int64_t query = index % all.queries;
  const std::int64_t head = index / all.queries;
  const std::int64_t number = batch_number(query, sequences.q_ends, sequences.count);
  if (number == sequences.count) {
    write_zeros(grad_q + all.grad_q.offset(0, head) + query * all.grad_q.row, all.width);
    return;
  }
  const Batch queries = around(batch_of(number, sequences.q_ends, all.queries), query);
  const Batch keys = keys_of(number, sequences, all.keys);
  const Params p = problem_of_sequence(all, queries, keys);
  const std::int64_t row = (p.heads + head) * p.queries + query - queries.begin;
  const std::int64_t offset = query * p.heads + head - row;  // from a number's offset in `row`
  in.lse += offset;
  if (in.grad_lse != nullptr) in.grad_lse += offset;
  if (threadIdx.x % 32 == 0) numbers_of(lse, p, queries)[row] = in.lse[row];
  query_backward<T, false>(in, grad_q, numbers_of(slopes, p, queries), p, row);
}

/// The gradients of k and v.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    backward_of_packed_keys(GradientInputs<T> in, T* grad_k, T* grad_v, const Compute<T>* slopes,
                            const Compute<T>* lse, Sequences sequences, Params all) {
  gpu::wait_for_previous_kernel();
  const std::int64_t index = row_of_warp();
  if (index >= all.kv_heads * all.keys) return;
  const std::int64_t key = index % all.keys;
  const std::int64_t head = index / all.keys;
  const std::int64_t number = batch_number(key, sequences.k_ends, sequences.count);
  if (number == sequences.count) {
    write_zeros(grad_k + all.grad_k.offset(0, head) + key * all.grad_k.row, all.width);
    write_zeros(grad_v + all.grad_v.offset(0, head) + key * all.grad_v.row, all.value_width);
    return;
  }
  const Batch queries = in_order(batch_of(number, sequences.q_ends, all.queries));
  const Batch keys = around(batch_of(number, sequences.k_ends, all.keys), key);
  const Params p = problem_of_sequence(all, queries, keys);
  in.lse = numbers_of(lse, p, queries);
  key_backward(in, grad_k, grad_v, numbers_of(slopes, p, queries), p,
               (p.kv_heads + head) * p.keys + key - keys.begin);
}

Status run(const Call& call, float* lse) {
  const Params p = packed_problem_of(call, 0);
  if (p.heads * p.queries == 0) return {};
  const Sequences sequences = sequences_of(call, 3, 4);
  for (PackedForward* const engine : {mma_packed_forward, tiled_packed_forward}) {
    if (std::optional<Status> status = engine(call, p, sequences, lse)) return *std::move(status);
  }
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch(call, attend_packed<T>, grid_of(p.heads * p.queries),
                       static_cast<const T*>(call.inputs[0].data),
                       static_cast<const T*>(call.inputs[1].data),
                       static_cast<const T*>(call.inputs[2].data),
                       static_cast<T*>(call.outputs[0].data), lse, sequences, p);
  });
}

}  // namespace

Status AttentionVarlen::cuda(const Call& call) { return run(call, nullptr); }

Status AttentionVarlenWithLse::cuda(const Call& call) {
  return run(call, static_cast<float*>(call.outputs[1].data));
}

Status AttentionVarlenBackward::cuda(const Call& call) {
  const Params p = packed_problem_of(call, 1);
  const Sequences sequences = sequences_of(call, 6, 8);
  for (PackedBackward* const engine : {mma_packed_backward, tiled_packed_backward}) {
    if (std::optional<Status> status = engine(call, p, sequences)) return *std::move(status);
  }
  const std::int64_t rows = p.heads * p.queries;
  const std::int64_t keys = p.kv_heads * p.keys;
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto output = [&](std::size_t i) { return static_cast<T*>(call.outputs[i].data); };
    GradientInputs<T> in;
    if (Status status = find_inputs(call, p, &sequences, in); !status.ok()) return status;
    Compute<T>* slopes = nullptr;
    Compute<T>* lse = nullptr;
    if (Status status = allocate(call, rows, slopes); !status.ok()) return status;
    if (Status status = allocate(call, rows, lse); !status.ok()) return status;
    if (rows > 0) {
      Status status = gpu::launch(call, backward_of_packed_queries<T>, grid_of(rows), in, output(0),
                                  slopes, lse, sequences, p);
      if (!status.ok()) return status;
    }
    if (keys == 0) return Status();
    return gpu::launch(call, backward_of_packed_keys<T>, grid_of(keys), in, output(1), output(2),
                       slopes, lse, sequences, p);
  });
}

}  // namespace cudarelu::ops

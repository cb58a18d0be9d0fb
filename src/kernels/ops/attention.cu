#include "ops/attention.h"
#include "ops/attention/cuda.cuh"
#include "ops/attention_with_lse.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

/// `lse` may be null.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    attend(const T* q, const T* k, const T* v, T* y, float* lse, Problem p) {
  using C = Compute<T>;
  cuda::wait_for_previous_kernel();
  const std::int64_t row = row_of_warp();
  if (row >= p.batch * p.heads * p.queries) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Row at(p, row);
  const T* const keys = k + at.kv * p.keys * p.width;
  const T* const values = v + at.kv * p.keys * p.value_width;
  const std::int64_t visible = p.is_causal ? min(p.keys, at.query + 1) : p.keys;
  for (std::int64_t first = 0; first == 0 || first < p.value_width; first += pass) {
    C sums[columns_of_lane] = {};
    C largest = low<C>;
    C total = 0;
    for (std::int64_t key = 0; key < visible; key += 32) {
      const bool inside = key + lane < visible;
      const C score = inside ? score_of(p, q + row * p.width, keys + (key + lane) * p.width,
                                        at.place + (key + lane) * p.mask.key_stride)
                             : low<C>;
      // Ignores NaN, which propagates through the sum.
      const C raised = cuda::reduce_in_warp<32>(score > largest ? score : largest,
                                                [](C a, C b) { return a > b ? a : b; });
      const C base = raised == low<C> ? C(0) : raised;  // -infinity less itself is NaN
      const C weight = inside ? exp(score - base) : C(0);
      const C factor = largest == raised ? C(1) : exp(largest - base);
      largest = raised;
      total = total * factor + cuda::sum_in_warp<32>(weight);
#pragma unroll
      for (int i = 0; i < columns_of_lane; ++i) sums[i] *= factor;
      const int count = static_cast<int>(min(visible - key, std::int64_t{32}));
      add_rows(weight, values + key * p.value_width, count, p.value_width, first, sums);
    }
    write_row(sums, total == 0 ? C(0) : 1 / total, p.value_width, first, y + row * p.value_width);
    if (lse != nullptr && first == 0 && lane == 0) {
      lse[row] = static_cast<float>((largest == low<C> ? C(0) : largest) + log(total));
    }
  }
}

Status run(const Call& call, float* lse) {
  const Problem p = problem_of(call, 0);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  if (rows == 0) return {};
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cuda::launch(call, attend<T>, grid_of(rows), static_cast<const T*>(call.inputs[0].data),
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

// The backward pass of attention, a warp for each row: those of q first, which also give the slopes
// that those of k need.
#pragma once

#include "ops/attention/exact_backward.cuh"

namespace cudarelu::ops::attention {

/// exp(score - lse) for a finite lse; where no key is visible, all scores are -infinity.
template <class T>
__device__ ScoreGradient<Compute<T>> gradient_of(const Params& p, const GradientInputs<T>& in,
                                                 const Row& at, std::int64_t row, std::int64_t key,
                                                 std::int64_t offset, bool hidden,
                                                 Compute<T> slope) {
  using C = Compute<T>;
  const C lse = in.lse[row];
  const T* const keys = at.keys_in(in.k, p.k)[key];
  const C score = hidden ? low<C> : score_of(p, at.in(in.q, p.q), keys, offset);
  const C weight = exp(score - (lse == low<C> ? C(0) : lse));
  const C product = dot(at.in(in.grad_y, p.grad_y), at.keys_in(in.v, p.v)[key], p.value_width);
  return {weight, weight * (product - slope)};
}

/// For a row of q: the gradient of q, and the sum of grad_y y less grad_lse; or the gradient of the
/// mask.
template <class T, bool of_mask>
__device__ void query_backward(const GradientInputs<T>& in, T* output, Compute<T>* slopes,
                               const Params& p, std::int64_t row) {
  using C = Compute<T>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Row at(p, row);
  C slope = 0;
  const T* const grads = at.in(in.grad_y, p.grad_y);
  const T* const results = at.in(in.y, p.y);
  for (std::int64_t i = lane; i < p.value_width; i += 32) {
    slope += load(grads[i]) * load(results[i]);
  }
  slope = gpu::sum_in_warp<32>(slope);
  if (in.grad_lse != nullptr) slope -= in.grad_lse[row];
  if (!of_mask && lane == 0) slopes[row] = slope;
  const std::int64_t visible = p.is_causal ? min(p.keys, at.query + 1) : p.keys;
  for (std::int64_t first = 0; first == 0 || first < p.width; first += pass) {
    C sums[columns_of_lane] = {};
    for (std::int64_t key = 0; key < (of_mask ? p.keys : visible); key += 32) {
      ScoreGradient<C> gradient{};
      if (key + lane < (of_mask ? p.keys : visible)) {
        gradient =
            gradient_of(p, in, at, row, key + lane, at.offset + (key + lane) * p.mask.key_stride,
                        key + lane >= visible, slope);
        if constexpr (of_mask) {
          at.in(output, p.grad_mask)[key + lane] = store<T>(gradient.value);
        }
      }
      if constexpr (!of_mask) {
        const int count = static_cast<int>(min(visible - key, std::int64_t{32}));
        add_rows(gradient.value, at.keys_in(in.k, p.k), key, count, p.width, first, sums);
      }
    }
    if constexpr (of_mask) return;
    write_row(sums, static_cast<C>(p.scale), p.width, first, at.in(output, p.grad_q));
  }
}

/// The gradients of k and v for a row of k, counted over the batch and the heads.
template <class T>
__device__ void key_backward(const GradientInputs<T>& in, T* grad_k, T* grad_v,
                             const Compute<T>* slopes, const Params& p, std::int64_t key) {
  using C = Compute<T>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t position = key % p.keys;
  const std::int64_t rows = p.group() * p.queries;  // that share the head of k
  const std::int64_t kv = key / p.keys;
  const HeadRows<const T> queries = p.queries_of(in.q, p.q, kv);
  const HeadRows<const T> grads = p.queries_of(in.grad_y, p.grad_y, kv);
  const std::int64_t columns = max(p.width, p.value_width);
  for (std::int64_t first = 0; first < columns; first += pass) {
    C key_sums[columns_of_lane] = {};
    C value_sums[columns_of_lane] = {};
    for (std::int64_t row = 0; row < rows; row += 32) {
      ScoreGradient<C> gradient{};
      if (row + lane < rows) {
        const std::int64_t own = kv * rows + row + lane;
        const Row at(p, own);
        gradient = gradient_of(p, in, at, own, position, at.offset + position * p.mask.key_stride,
                               p.is_causal && position > at.query, slopes[own]);
      }
      const int count = static_cast<int>(min(rows - row, std::int64_t{32}));
      add_rows(gradient.value, queries, row, count, p.width, first, key_sums);
      add_rows(gradient.weight, grads, row, count, p.value_width, first, value_sums);
    }
    write_row(key_sums, static_cast<C>(p.scale), p.width, first,
              p.keys_of(grad_k, p.grad_k, kv)[position]);
    write_row(value_sums, C(1), p.value_width, first, p.keys_of(grad_v, p.grad_v, kv)[position]);
  }
}

}  // namespace cudarelu::ops::attention

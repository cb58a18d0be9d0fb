// The gradients of single queries and keys, by a warp, from the keys and queries that they see
// alone. Products of tiles multiply hidden ones by zero instead, which makes NaN of infinity and
// NaN: rows of the result with NaN are computed again in this way. That is rare, and many kernels
// contain the code: it is short rather than fast.
#pragma once

#include "ops/attention/cuda.cuh"
#include "ops/attention/engines.h"

namespace cudarelu::ops::attention {

template <class T>
struct GradientInputs {
  const T* grad_y;
  const T* q;
  const T* k;
  const T* v;
  const T* y;
  const Compute<T>* lse;
  const float* grad_lse;  // or null
};

/// The inputs of attention_backward and attention_mask_backward; of other ops, grad_lse has another
/// position. In float64, find_inputs() finds the lse.
template <class T>
GradientInputs<T> gradient_inputs(const Call& call, std::size_t grad_lse = 6) {
  const auto tensor = [&](std::size_t i) { return static_cast<const T*>(call.inputs[i].data); };
  const auto numbers = [&](std::size_t i) {
    return call.inputs[i].present ? static_cast<const float*>(call.inputs[i].data) : nullptr;
  };
  const Compute<T>* lse = nullptr;
  if constexpr (!std::is_same_v<T, double>) lse = numbers(5);
  return {tensor(0), tensor(1), tensor(2), tensor(3), tensor(4), lse, numbers(grad_lse)};
}

/// The same for each dtype. `sequences` is null if they are not packed.
template <class T>
Status find_inputs(const Call& call, const Params& p, const Sequences* sequences,
                   GradientInputs<T>& in) {
  in = gradient_inputs<T>(call, sequences == nullptr ? 6 : 7);
  if constexpr (std::is_same_v<T, double>) return find_exact_lse(call, p, sequences, in.lse);
  return {};
}

/// The weight and the gradient of a score.
template <class C>
struct ScoreGradient {
  C weight;
  C value;
};

template <class T>
__device__ bool is_hidden_by_mask(const Mask& mask, std::int64_t offset) {
  if (mask.data == nullptr) return false;
  if (mask.is_bool) return static_cast<const std::uint8_t*>(mask.data)[offset] == 0;
  return load(static_cast<const T*>(mask.data)[offset]) == low<Compute<T>>;
}

/// Of a row of q, whose offset is `at`, and of a key that it sees.
template <class T>
__device__ __noinline__ ScoreGradient<Compute<T>> gradient_of_score(const Params& p,
                                                                    const GradientInputs<T>& in,
                                                                    const Row& at, std::int64_t key,
                                                                    std::int64_t offset) {
  using C = Compute<T>;
  const C lse = *at.in(in.lse, p.lse);
  const C score = score_of(p, at.in(in.q, p.q), at.keys_in(in.k, p.k)[key], offset);
  const C weight = exp(score - (lse == low<C> ? C(0) : lse));
  const T* const grads = at.in(in.grad_y, p.grad_y);
  const C product = dot(grads, at.keys_in(in.v, p.v)[key], p.value_width);
  C slope = dot(grads, at.in(in.y, p.y), p.value_width);
  if (in.grad_lse != nullptr) slope -= *at.in(in.grad_lse, p.lse);
  return {weight, weight * (product - slope)};
}

/// sums[i] += the weight of each lane that `sees` times its row, as add_rows() does it.
template <class T>
__device__ __noinline__ void add_seen_rows(bool sees, Compute<T> weight,
                                           const HeadRows<const T>& matrix, std::int64_t begin,
                                           std::int64_t columns, std::int64_t first,
                                           Compute<T> (&sums)[columns_of_lane]) {
  for (unsigned left = __ballot_sync(0xffffffff, sees); left != 0; left &= left - 1) {
    const int row = __ffs(static_cast<int>(left)) - 1;
    const Compute<T> factor = __shfl_sync(0xffffffff, weight, row);
    const T* const from = matrix[begin + row];
#pragma unroll
    for (int i = 0; i < columns_of_lane; ++i) {
      const std::int64_t column = first + threadIdx.x % 32 + 32 * i;
      if (column < columns) sums[i] += factor * load(from[column]);
    }
  }
}

/// Writes a row of grad_q.
template <class T>
__device__ void write_gradient_of_query(const Params& p, const GradientInputs<T>& in,
                                        std::int64_t row, T* grad_q) {
  using C = Compute<T>;
  const Row at(p, row);
  const std::int64_t lane = threadIdx.x % 32;
  const std::int64_t visible = p.is_causal ? min(p.keys, at.query + 1) : p.keys;
  for (std::int64_t first = 0; first < p.width; first += pass) {
    C sums[columns_of_lane] = {};
    for (std::int64_t key = 0; key < visible; key += 32) {
      const std::int64_t offset = at.offset + (key + lane) * p.mask.key_stride;
      const bool sees = key + lane < visible && !is_hidden_by_mask<T>(p.mask, offset);
      const C value = sees ? gradient_of_score(p, in, at, key + lane, offset).value : C(0);
      add_seen_rows(sees, value, at.keys_in(in.k, p.k), key, p.width, first, sums);
    }
    write_row(sums, static_cast<C>(p.scale), p.width, first, at.in(grad_q, p.grad_q));
  }
}

/// Writes a row of grad_k and of grad_v, counted over the batch and the heads; not of a null one.
template <class T>
__device__ void write_gradients_of_key(const Params& p, const GradientInputs<T>& in,
                                       std::int64_t key, T* grad_k, T* grad_v) {
  using C = Compute<T>;
  const std::int64_t position = key % p.keys;
  const std::int64_t rows = p.group() * p.queries;  // that share the head of k
  const std::int64_t kv = key / p.keys;
  const HeadRows<const T> queries = p.queries_of(in.q, p.q, kv);
  const HeadRows<const T> grads = p.queries_of(in.grad_y, p.grad_y, kv);
  const std::int64_t lane = threadIdx.x % 32;
  for (std::int64_t first = 0; first < max(p.width, p.value_width); first += pass) {
    C key_sums[columns_of_lane] = {};
    C value_sums[columns_of_lane] = {};
    for (std::int64_t row = 0; row < rows; row += 32) {
      const std::int64_t own = kv * rows + row + lane;
      ScoreGradient<C> gradient{};
      bool sees = row + lane < rows;
      if (sees) {
        const Row at(p, own);
        const std::int64_t offset = at.offset + position * p.mask.key_stride;
        sees = !(p.is_causal && position > at.query) && !is_hidden_by_mask<T>(p.mask, offset);
        if (sees) gradient = gradient_of_score(p, in, at, position, offset);
      }
      add_seen_rows(sees, gradient.value, queries, row, p.width, first, key_sums);
      add_seen_rows(sees, gradient.weight, grads, row, p.value_width, first, value_sums);
    }
    if (grad_k != nullptr) {
      write_row(key_sums, static_cast<C>(p.scale), p.width, first,
                p.keys_of(grad_k, p.grad_k, kv)[position]);
    }
    if (grad_v != nullptr) {
      write_row(value_sums, C(1), p.value_width, first, p.keys_of(grad_v, p.grad_v, kv)[position]);
    }
  }
}

/// Whether a row has NaN; for a warp.
template <class T>
__device__ bool has_nan(const T* row, std::int64_t columns) {
  bool found = false;
  for (std::int64_t i = threadIdx.x % 32; i < columns; i += 32) {
    const Compute<T> x = load(row[i]);
    found |= x != x;
  }
  return __any_sync(0xffffffff, found);
}

}  // namespace cudarelu::ops::attention

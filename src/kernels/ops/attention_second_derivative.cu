#include "ops/attention/exact_backward.cuh"
#include "ops/attention_mask_second_derivative.h"
#include "ops/attention_second_derivative.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

template <class T>
struct SecondInputs {
  GradientInputs<T> first;
  const T* grad_grad_q;  // these or null
  const T* grad_grad_k;
  const T* grad_grad_v;
  const T* grad_grad_mask;
};

template <class T>
Status find_inputs(const Call& call, const Params& p, SecondInputs<T>& in) {
  const auto tensor = [&](std::size_t i) {
    return call.inputs[i].present ? static_cast<const T*>(call.inputs[i].data) : nullptr;
  };
  in = {{}, tensor(7), tensor(8), tensor(9), tensor(10)};
  return attention::find_inputs(call, p, nullptr, in.first);
}

template <class T>
struct SecondOutputs {
  T* of_grad_y;
  T* of_q;
  T* of_k;
  T* of_v;
  T* of_y;
  float* of_lse;
  float* of_grad_lse;
};

/// The rows of a tensor, whose heads lie one after the other: no tensor here has strides.
template <class T>
__device__ HeadRows<const T> rows_of(const T* data, std::int64_t columns) {
  return {data, columns, 0, 0};
}

/// The first key of the head that a row of q sees, counted over the batch and the heads.
__device__ inline std::int64_t first_key(const Params& p, const Row& at) {
  return (at.batch * p.kv_heads + at.kv_head) * p.keys;
}

/// What a query and a key add to the sums; the names are those of the definition.
template <class C>
struct Terms {
  C weight;
  C grad_score;
  C weighted;
  C second;
};

/// The terms of a row of q, and of the key `position` of its head of k.
template <class T>
__device__ Terms<Compute<T>> terms_of(const Params& p, const SecondInputs<T>& in, std::int64_t row,
                                      const Row& at, std::int64_t position) {
  using C = Compute<T>;
  const std::int64_t key = first_key(p, at) + position;
  const T* const query = in.first.q + row * p.width;
  const T* const gradients = in.first.grad_y + row * p.value_width;
  const bool hidden = p.is_causal && position > at.query;
  const C score = hidden ? low<C>
                         : score_of(p, query, in.first.k + key * p.width,
                                    at.offset + position * p.mask.key_stride);
  const C lse = in.first.lse[row];
  const C weight = exp(score - (lse == low<C> ? C(0) : lse));
  C slope = dot(gradients, in.first.y + row * p.value_width, p.value_width);
  if (in.first.grad_lse != nullptr) slope -= in.first.grad_lse[row];
  const C centred = dot(gradients, in.first.v + key * p.value_width, p.value_width) - slope;
  C tangent = 0;
  if (in.grad_grad_q != nullptr) {
    tangent += dot(in.grad_grad_q + row * p.width, in.first.k + key * p.width, p.width);
  }
  if (in.grad_grad_k != nullptr) {
    tangent += dot(query, in.grad_grad_k + key * p.width, p.width);
  }
  tangent *= static_cast<C>(p.scale);
  if (in.grad_grad_mask != nullptr) tangent += load(in.grad_grad_mask[row * p.keys + position]);
  C second = centred * tangent;
  if (in.grad_grad_v != nullptr) {
    second += dot(gradients, in.grad_grad_v + key * p.value_width, p.value_width);
  }
  return {weight, weight * centred, weight * tangent, weight * second};
}

/// The gradients of grad_y, q, y, lse and grad_lse.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    second_of_queries(SecondInputs<T> in, SecondOutputs<T> out, const __grid_constant__ Params p) {
  using C = Compute<T>;
  gpu::wait_for_previous_kernel();
  const std::int64_t row = row_of_warp();
  if (row >= p.batch * p.heads * p.queries) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Row at(p, row);
  const std::int64_t visible = p.is_causal ? min(p.keys, at.query + 1) : p.keys;
  const std::int64_t columns = max(p.width, p.value_width);
  for (std::int64_t first = 0; first == 0 || first < columns; first += pass) {
    C sums[columns_of_lane] = {};
    C value_sums[columns_of_lane] = {};
    C level = 0;
    C second_sum = 0;
    for (std::int64_t key = 0; key < visible; key += 32) {
      Terms<C> terms{};
      if (key + lane < visible) terms = terms_of(p, in, row, at, key + lane);
      level += terms.weighted;
      second_sum += terms.second;
      const int count = static_cast<int>(min(visible - key, std::int64_t{32}));
      const std::int64_t own = first_key(p, at) + key;
      add_rows(terms.second, rows_of(in.first.k, p.width), own, count, p.width, first, sums);
      if (in.grad_grad_k != nullptr) {
        add_rows(terms.grad_score, rows_of(in.grad_grad_k, p.width), own, count, p.width, first,
                 sums);
      }
      add_rows(terms.weighted, rows_of(in.first.v, p.value_width), own, count, p.value_width, first,
               value_sums);
      if (in.grad_grad_v != nullptr) {
        add_rows(terms.weight, rows_of(in.grad_grad_v, p.value_width), own, count, p.value_width,
                 first, value_sums);
      }
    }
    level = gpu::sum_in_warp<32>(level);
    second_sum = gpu::sum_in_warp<32>(second_sum);
    if (first == 0 && lane == 0) {
      out.of_lse[row] = static_cast<float>(-second_sum);
      out.of_grad_lse[row] = static_cast<float>(level);
    }
    write_row(sums, static_cast<C>(p.scale), p.width, first, out.of_q + row * p.width);
#pragma unroll
    for (int i = 0; i < columns_of_lane; ++i) {
      const std::int64_t column = first + lane + 32 * i;
      if (column >= p.value_width) break;
      const std::int64_t offset = row * p.value_width + column;
      out.of_y[offset] = store<T>(-level * load(in.first.grad_y[offset]));
      value_sums[i] -= level * load(in.first.y[offset]);
    }
    write_row(value_sums, C(1), p.value_width, first, out.of_grad_y + row * p.value_width);
  }
}

/// The gradients of k and v.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    second_of_keys(SecondInputs<T> in, SecondOutputs<T> out, const __grid_constant__ Params p) {
  using C = Compute<T>;
  gpu::wait_for_previous_kernel();
  const std::int64_t key = row_of_warp();  // counted over the batch and the heads
  if (key >= p.batch * p.kv_heads * p.keys) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t rows = p.group() * p.queries;  // that share the head of k
  const std::int64_t first_row = key / p.keys * rows;
  const std::int64_t columns = max(p.width, p.value_width);
  for (std::int64_t first = 0; first < columns; first += pass) {
    C sums[columns_of_lane] = {};
    C value_sums[columns_of_lane] = {};
    for (std::int64_t row = 0; row < rows; row += 32) {
      const std::int64_t own = first_row + row;
      Terms<C> terms{};
      if (row + lane < rows) {
        terms = terms_of(p, in, own + lane, Row(p, own + lane), key % p.keys);
      }
      const int count = static_cast<int>(min(rows - row, std::int64_t{32}));
      add_rows(terms.second, rows_of(in.first.q, p.width), own, count, p.width, first, sums);
      if (in.grad_grad_q != nullptr) {
        add_rows(terms.grad_score, rows_of(in.grad_grad_q, p.width), own, count, p.width, first,
                 sums);
      }
      add_rows(terms.weighted, rows_of(in.first.grad_y, p.value_width), own, count, p.value_width,
               first, value_sums);
    }
    write_row(sums, static_cast<C>(p.scale), p.width, first, out.of_k + key * p.width);
    write_row(value_sums, C(1), p.value_width, first, out.of_v + key * p.value_width);
  }
}

/// The gradient of the mask.
template <class T>
__global__ void __launch_bounds__(32 * warps)
    second_of_mask(SecondInputs<T> in, T* of_mask, const __grid_constant__ Params p) {
  gpu::wait_for_previous_kernel();
  const std::int64_t row = row_of_warp();
  if (row >= p.batch * p.heads * p.queries) return;
  const Row at(p, row);
  for (std::int64_t key = threadIdx.x % 32; key < p.keys; key += 32) {
    of_mask[row * p.keys + key] = store<T>(terms_of(p, in, row, at, key).second);
  }
}

}  // namespace

Status AttentionSecondDerivative::cuda(const Call& call) {
  const Params p = params_of(call, 1);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  const std::int64_t keys = p.batch * p.kv_heads * p.keys;
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto output = [&](std::size_t i) { return static_cast<T*>(call.outputs[i].data); };
    const auto numbers = [&](std::size_t i) { return static_cast<float*>(call.outputs[i].data); };
    SecondInputs<T> in;
    if (Status status = find_inputs(call, p, in); !status.ok()) return status;
    const SecondOutputs<T> out{output(0), output(1),  output(2), output(3),
                               output(4), numbers(5), numbers(6)};
    if (rows > 0) {
      Status status = gpu::launch(call, second_of_queries<T>, grid_of(rows), in, out, p);
      if (!status.ok()) return status;
    }
    if (keys == 0) return Status();
    return gpu::launch(call, second_of_keys<T>, grid_of(keys), in, out, p);
  });
}

Status AttentionMaskSecondDerivative::cuda(const Call& call) {
  const Params p = params_of(call, 1);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  if (rows == 0) return {};
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    SecondInputs<T> in;
    if (Status status = find_inputs(call, p, in); !status.ok()) return status;
    return gpu::launch(call, second_of_mask<T>, grid_of(rows), in,
                       static_cast<T*>(call.outputs[0].data), p);
  });
}

}  // namespace cudarelu::ops

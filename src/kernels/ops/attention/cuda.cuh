// Attention on CUDA, a warp for each row of an output: for the architectures, sizes and dtypes that
// have no faster kernel. The lanes of the warp hold the scores of 32 keys, or of 32 queries, and
// then columns of the sum that these scores weight.
#pragma once

#include "cudarelu/detail/cuda/rows.cuh"
#include "ops/attention/params.h"

namespace cudarelu::ops::attention {

inline constexpr int warps = 4;            // of a block
inline constexpr int columns_of_lane = 8;  // of a sum; longer rows take several passes
inline constexpr int pass = 32 * columns_of_lane;

template <class C>
inline constexpr C low = -std::numeric_limits<C>::infinity();

template <class T>
__device__ Compute<T> dot(const T* a, const T* b, std::int64_t size) {
  Compute<T> sum = 0;
#pragma unroll 4  // not more: many kernels contain it
  for (std::int64_t i = 0; i < size; ++i) sum += load(a[i]) * load(b[i]);
  return sum;
}

/// The score of a product whose element of the mask is at `offset`.
template <class T>
__device__ Compute<T> score_of_product(const Params& p, Compute<T> product, std::int64_t offset) {
  using C = Compute<T>;
  const C score = product * static_cast<C>(p.scale);
  if (p.mask.data == nullptr) return score;
  if (p.mask.is_bool) {
    return static_cast<const std::uint8_t*>(p.mask.data)[offset] == 0 ? low<C> : score;
  }
  const C bias = load(static_cast<const T*>(p.mask.data)[offset]);
  return bias == low<C> ? low<C> : score + bias;
}

/// The score of a query and a key whose element of the mask is at `offset`.
template <class T>
__device__ Compute<T> score_of(const Params& p, const T* query, const T* key, std::int64_t offset) {
  return score_of_product<T>(p, dot(query, key, p.width), offset);
}

/// sums[i] += the sum over `count` lanes of the lane's weight times row `begin` + lane of a matrix,
/// for the columns of this lane from `first` on. Rows whose bit in `used` is 0 are not read.
template <class T>
__device__ void add_rows(Compute<T> weight, const HeadRows<const T>& matrix, std::int64_t begin,
                         int count, std::int64_t columns, std::int64_t first,
                         Compute<T> (&sums)[columns_of_lane], unsigned used = ~0u) {
  for (int row = 0; row < count; ++row) {
    if ((used >> row & 1u) == 0) continue;
    const Compute<T> factor = __shfl_sync(0xffffffff, weight, row);
    const T* const from = matrix[begin + row];
#pragma unroll
    for (int i = 0; i < columns_of_lane; ++i) {
      const std::int64_t column = first + threadIdx.x % 32 + 32 * i;
      if (column < columns) sums[i] += factor * load(from[column]);
    }
  }
}

template <class T>
__device__ void write_row(const Compute<T> (&sums)[columns_of_lane], Compute<T> factor,
                          std::int64_t columns, std::int64_t first, T* to) {
#pragma unroll
  for (int i = 0; i < columns_of_lane; ++i) {
    const std::int64_t column = first + threadIdx.x % 32 + 32 * i;
    if (column < columns) to[column] = store<T>(sums[i] * factor);
  }
}

/// Not inlined, as below: divisions of 64 bits are long.
__device__ __noinline__ inline std::int64_t mask_offset(const Mask& mask, std::int64_t batch,
                                                        std::int64_t head) {
  return mask.offset(batch, head);
}

/// The offset of a row of q, which is counted over the batch and the heads.
struct Row {
  std::int64_t query;
  std::int64_t head;
  std::int64_t batch;
  std::int64_t kv_head;
  std::int64_t offset = 0;  // of the first key in the mask

  __device__ Row(const Params& p, std::int64_t row) : Row(at(row, p.queries, p.heads, p.kv_heads)) {
    if (p.mask.data != nullptr) {
      offset = mask_offset(p.mask, batch, head) + query * p.mask.query_stride;
    }
  }

  /// The row in a tensor like q.
  template <class T>
  __device__ T* in(T* tensor, const Layout& layout) const {
    return tensor + layout.offset(batch, head) + query * layout.row;
  }
  /// The rows of a tensor like k that the row may see.
  template <class T>
  __device__ HeadRows<T> keys_in(T* tensor, const Layout& layout) const {
    return {tensor + layout.offset(batch, kv_head), layout.row, 0, 0};
  }

 private:
  Row() = default;
  __device__ __noinline__ static Row at(std::int64_t row, std::int64_t queries, std::int64_t heads,
                                        std::int64_t kv_heads) {
    Row result;
    const std::int64_t counted = row / queries;  // heads
    result.query = row - counted * queries;
    result.batch = counted / heads;
    result.head = counted - result.batch * heads;
    result.kv_head = result.head / (heads / kv_heads);
    return result;
  }
};

/// Whether the rows of a layout are at multiples of 16 bytes from the first one, at distances
/// that fit into int, as vectors and tensor maps need them.
template <class T>
bool has_vectors(const Layout& layout) {
  constexpr std::int64_t elements = 16 / sizeof(T);
  constexpr std::int64_t most = (std::int64_t{1} << 40) / sizeof(T);
  const auto fits = [](std::int64_t stride) { return stride % elements == 0 && stride < most; };
  return fits(layout.batch) && fits(layout.head) && fits(layout.row) &&
         layout.row <= std::numeric_limits<int>::max();
}

/// The row of this warp.
__device__ inline std::int64_t row_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
}

/// A launch of a warp for each of `rows` rows.
inline gpu::Grid grid_of(std::int64_t rows) {
  return {gpu::blocks_for(rows, warps), static_cast<unsigned>(warps) * 32};
}

/// Computes a row of y, and of lse unless that is null, in a warp. Hidden keys and values have no
/// effect, whatever they are. If `hides_low`, a key is hidden too whose score is -infinity.
template <bool hides_low = true, class T>
__device__ void attend_row(const T* q, const T* k, const T* v, T* y, float* lse, const Params& p,
                           std::int64_t row) {
  using C = Compute<T>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Row at(p, row);
  const T* const query = at.in(q, p.q);
  T* const result = at.in(y, p.y);
  const HeadRows<const T> keys = at.keys_in(k, p.k);
  const HeadRows<const T> values = at.keys_in(v, p.v);
  const std::int64_t visible = p.is_causal ? min(p.keys, at.query + 1) : p.keys;
  for (std::int64_t first = 0; first == 0 || first < p.value_width; first += pass) {
    C sums[columns_of_lane] = {};
    C largest = low<C>;
    C total = 0;
    for (std::int64_t key = 0; key < visible; key += 32) {
      const bool inside = key + lane < visible;
      const C score = inside ? score_of(p, query, keys[key + lane],
                                        at.offset + (key + lane) * p.mask.key_stride)
                             : low<C>;
      // Ignores NaN, which propagates through the sum.
      const C raised = gpu::reduce_in_warp<32>(score > largest ? score : largest,
                                               [](C a, C b) { return a > b ? a : b; });
      const C base = raised == low<C> ? C(0) : raised;  // -infinity less itself is NaN
      const C weight = inside ? exp(score - base) : C(0);
      const C factor = largest == raised ? C(1) : exp(largest - base);
      largest = raised;
      total = total * factor + gpu::sum_in_warp<32>(weight);
#pragma unroll
      for (int i = 0; i < columns_of_lane; ++i) sums[i] *= factor;
      const int count = static_cast<int>(min(visible - key, std::int64_t{32}));
      add_rows(weight, values, key, count, p.value_width, first, sums,
               hides_low ? __ballot_sync(0xffffffff, score != low<C>) : ~0u);
    }
    write_row(sums, total == 0 ? C(0) : 1 / total, p.value_width, first, result);
    if (lse != nullptr && first == 0 && lane == 0) {
      *at.in(lse, p.lse) = static_cast<float>((largest == low<C> ? C(0) : largest) + log(total));
    }
  }
}

}  // namespace cudarelu::ops::attention

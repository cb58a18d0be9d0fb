// One call of attention: its sizes, its scale and its mask, as all kernels use them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "cudarelu/call.h"
#include "cudarelu/types.h"

namespace cudarelu::ops::attention {

/// Where the elements of the mask are; a stride is 0 where it broadcasts.
struct Mask {
  /// The last one first. Neighbours that broadcast alike are one dimension, and those of size 1 are
  /// none, so that half of max_rank are enough.
  static constexpr int max_leading = 32;

  const void* data = nullptr;  // null: there is no mask
  bool is_bool = false;
  std::int64_t elements = 0;
  int leading = 0;
  std::int64_t sizes[max_leading]{};
  std::int64_t strides[max_leading]{};
  std::int64_t head_stride = 0;
  std::int64_t query_stride = 0;
  std::int64_t key_stride = 0;

  /// The place of the first element for a head of q.
  CUDARELU_FN std::int64_t place(std::int64_t batch, std::int64_t head) const {
    std::int64_t place = head * head_stride;
    for (int i = 0; i < leading; ++i) {
      place += batch % sizes[i] * strides[i];
      batch /= sizes[i];
    }
    return place;
  }
};

struct Problem {
  std::int64_t batch = 1;  // the product of the leading dimensions
  std::int64_t heads;      // of q
  std::int64_t kv_heads;   // of k and v
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t width;        // of q and k: d
  std::int64_t value_width;  // of v: e
  double scale;
  bool is_causal;
  Mask mask;

  /// The heads of q that share one of k and v.
  CUDARELU_FN std::int64_t group() const { return kv_heads == 0 ? 0 : heads / kv_heads; }
};

/// The mask of a call with scores of the shape `full`.
inline Mask mask_of(const TensorView& tensor, std::span<const std::int64_t> full) {
  Mask mask;
  if (!tensor.present) return mask;
  mask.data = tensor.data;
  mask.is_bool = tensor.dtype == DType::boolean;
  mask.elements = tensor.size();
  const std::size_t missing = full.size() - tensor.shape.size();
  std::int64_t* const own[] = {&mask.head_stride, &mask.query_stride, &mask.key_stride};
  std::int64_t stride = 1;
  for (std::size_t i = full.size(); i-- > missing;) {
    const std::int64_t size = tensor.shape[i - missing];
    const std::int64_t here = size == 1 ? 0 : stride;
    stride *= size;
    const int last = mask.leading - 1;
    if (i + 3 >= full.size()) {
      *own[i + 3 - full.size()] = here;
    } else if (full[i] == 1) {
      continue;
    } else if (last >= 0 && here == mask.strides[last] * mask.sizes[last]) {
      mask.sizes[last] *= full[i];
    } else {
      mask.sizes[mask.leading] = full[i];
      mask.strides[mask.leading++] = here;
    }
  }
  return mask;
}

/// The problem of a call whose input `first` is q; k and v follow it, and `mask` is the last input.
inline Problem problem_of(const Call& call, std::size_t first) {
  const auto& q = call.inputs[first].shape;
  const auto& k = call.inputs[first + 1].shape;
  const auto& v = call.inputs[first + 2].shape;
  const std::size_t rank = q.size();
  Problem p;
  for (const std::int64_t dim : q.first(rank - 3)) p.batch *= dim;
  p.heads = q[rank - 3];
  p.kv_heads = k[rank - 3];
  p.queries = q[rank - 2];
  p.keys = k[rank - 2];
  p.width = q[rank - 1];
  p.value_width = v[rank - 1];
  p.is_causal = call.boolean(0);
  p.scale = call.real(1);
  // Without elements every product is 0, whatever the scale is.
  if (std::isnan(p.scale)) p.scale = p.width == 0 ? 1 : 1 / std::sqrt(static_cast<double>(p.width));
  std::array<std::int64_t, 64> scores{};
  std::copy(q.begin(), q.end(), scores.begin());
  scores[rank - 1] = p.keys;
  p.mask = mask_of(call.inputs.back(), {scores.data(), rank});
  return p;
}

}  // namespace cudarelu::ops::attention

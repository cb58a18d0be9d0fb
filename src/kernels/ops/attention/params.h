// One call of attention: its sizes, its scale and its mask, as all kernels use them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "batches.h"
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

  /// The offset of the first element for a head of q.
  CUDARELU_FN std::int64_t offset(std::int64_t batch, std::int64_t head) const {
    std::int64_t offset = head * head_stride;
#ifdef __CUDA_ARCH__
#pragma unroll 1  // divisions of 64 bits are long
#endif
    for (int i = 0; i < leading; ++i) {
      offset += batch % sizes[i] * strides[i];
      batch /= sizes[i];
    }
    return offset;
  }
};

/// Where the rows of a tensor [batch, heads, rows, columns] begin: strides, in elements. The
/// elements of a row are neighbours.
struct Layout {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;

  /// The offset of the first row of a head.
  CUDARELU_FN std::int64_t offset(std::int64_t in_batch, std::int64_t in_heads) const {
    return in_batch * batch + in_heads * head;
  }
};

/// The rows of one head, or of some neighbouring heads one after the other.
template <class T, class Size = std::int64_t>
struct HeadRows {
  T* data;
  Size stride;
  Size rows_of_head;
  std::int64_t jump;  // from the end of a head's rows to the next head; 0 for one head

  CUDARELU_FN T* operator[](Size row) const {
    T* const at = data + std::int64_t{row} * stride;
    return jump == 0 ? at : at + row / rows_of_head * jump;
  }

  /// Rows from one on: of one head, or of several.
  struct InHead {
    static constexpr bool has_divisions = false;
    T* begin;
    Size stride;
    CUDARELU_FN T* operator()(Size i) const { return begin + std::int64_t{i} * stride; }
  };
  struct InHeads {
    static constexpr bool has_divisions = true;
    const HeadRows& rows;
    Size first;
    CUDARELU_FN T* operator()(Size i) const { return rows[first + i]; }
  };

  /// Calls use(at), where at(i) is row first + i, for i < count; without divisions in one head.
  template <class Use>
  CUDARELU_FN void visit(Size first, Size count, const Use& use) const {
    if (jump == 0 || first % rows_of_head + count <= rows_of_head) {
      use(InHead{(*this)[first], stride});
    } else {
      use(InHeads{*this, first});
    }
  }

  /// For sizes that fit.
  CUDARELU_FN HeadRows<T, int> in_int() const {
    return {data, static_cast<int>(stride), static_cast<int>(rows_of_head), jump};
  }
};

struct Params {
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
  Layout q, k, v, y;
  Layout grad_y;
  Layout grad_q, grad_k, grad_v;
  Layout grad_mask;
  Layout lse;  // also of other numbers for each query

  /// The heads of q that share one of k and v.
  CUDARELU_FN std::int64_t group() const { return kv_heads == 0 ? 0 : heads / kv_heads; }

  /// The rows of a tensor like q in the heads that share a head of k, counted over the batch.
  template <class T>
  CUDARELU_FN HeadRows<T> queries_of(T* data, const Layout& layout, std::int64_t kv) const {
    const std::int64_t first = layout.offset(kv / kv_heads, kv % kv_heads * group());
    return {data + first, layout.row, queries,
            group() == 1 ? 0 : layout.head - queries * layout.row};
  }

  /// The rows of a tensor like k in a head.
  template <class T>
  CUDARELU_FN HeadRows<T> keys_of(T* data, const Layout& layout, std::int64_t kv) const {
    return {data + layout.offset(kv / kv_heads, kv % kv_heads), layout.row, keys, 0};
  }
};

/// The lse of a query for gradients in float64: that of its scores, if `given` is this one rounded
/// to float32. An lse of other keys too, as of parts that are combined, stays as it is.
CUDARELU_FN double exact_lse(float given, double of_scores) {
  return std::abs(of_scores - given) < 0x1p-23 * std::abs(given) ? of_scores : given;
}

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

/// Sets the attributes of a call, and the layouts of tensors by layout(tensor, strides), whose
/// strides are null if it is dense. The arguments are those of params_of().
template <class F>
void complete(Params& p, const Call& call, std::size_t first, const F& layout) {
  p.is_causal = call.boolean(0);
  p.scale = call.real(1);
  // Without elements every product is 0, whatever the scale is.
  if (std::isnan(p.scale)) p.scale = p.width == 0 ? 1 : 1 / std::sqrt(static_cast<double>(p.width));
  const auto input = [&](std::size_t i) {
    return layout(call.inputs[i], call.strides.inputs ? call.strides.inputs[i] : nullptr);
  };
  const auto output = [&](std::size_t i) {
    return layout(call.outputs[i], call.strides.outputs ? call.strides.outputs[i] : nullptr);
  };
  p.q = input(first);
  p.k = input(first + 1);
  p.v = input(first + 2);
  if (first == 0) {
    p.y = output(0);
    return;
  }
  p.grad_y = input(0);
  p.y = input(4);
  if (call.outputs.size() == 1) {
    p.grad_mask = output(0);
  } else {
    p.grad_q = output(0);
    p.grad_k = output(1);
    p.grad_v = output(2);
  }
}

/// The parameters of a call whose input `first` is q; k and v follow it, and the mask is the last
/// input. If q is not the first input, grad_y is, and y is the fourth one after it.
inline Params params_of(const Call& call, std::size_t first) {
  const auto& q = call.inputs[first].shape;
  const auto& k = call.inputs[first + 1].shape;
  const auto& v = call.inputs[first + 2].shape;
  const std::size_t rank = q.size();
  Params p;
  for (const std::int64_t dim : q.first(rank - 3)) p.batch *= dim;
  p.heads = q[rank - 3];
  p.kv_heads = k[rank - 3];
  p.queries = q[rank - 2];
  p.keys = k[rank - 2];
  p.width = q[rank - 1];
  p.value_width = v[rank - 1];
  std::array<std::int64_t, 64> scores{};
  std::copy(q.begin(), q.end(), scores.begin());
  scores[rank - 1] = p.keys;
  p.mask = mask_of(call.inputs.back(), {scores.data(), rank});
  p.lse = {p.heads * p.queries, p.queries, 1};
  complete(p, call, first, [](const TensorView& tensor, const std::int64_t* strides) -> Layout {
    if (strides != nullptr) return {strides[0], strides[1], strides[2]};
    const auto sizes = tensor.shape.last(3);
    return {sizes[0] * sizes[1] * sizes[2], sizes[1] * sizes[2], sizes[2]};
  });
  return p;
}

/// Where sequences end that are packed into one, if there are several.
struct Sequences {
  const std::int32_t* q_ends = nullptr;
  const std::int32_t* k_ends = nullptr;
  std::int64_t count = 0;
  Params* params = nullptr;  // of each sequence, on the CPU
};

/// Of the offsets of q and k at these positions.
inline Sequences sequences_of(const Call& call, std::size_t q, std::size_t k) {
  const auto ends = [&](std::size_t i) {
    return static_cast<const std::int32_t*>(call.inputs[i].data);
  };
  return {ends(q), ends(k), call.inputs[q].shape[0]};
}

/// The parameters of a call with tensors [rows, heads, columns], as if all rows were one sequence.
inline Params packed_problem_of(const Call& call, std::size_t first) {
  const auto& q = call.inputs[first].shape;
  const auto& k = call.inputs[first + 1].shape;
  Params p;
  p.queries = q[0];
  p.heads = q[1];
  p.width = q[2];
  p.keys = k[0];
  p.kv_heads = k[1];
  p.value_width = call.inputs[first + 2].shape[2];
  p.lse = {0, 1, p.heads};
  complete(p, call, first, [](const TensorView& tensor, const std::int64_t* strides) -> Layout {
    if (strides != nullptr) return {0, strides[1], strides[0]};
    return {0, tensor.shape[2], tensor.shape[1] * tensor.shape[2]};
  });
  return p;
}

/// The parameters of one sequence of packed ones. It is number 1 of a batch, whose stride is the
/// way to its first row.
CUDARELU_FN Params sequence_of(Params p, const Batch& queries, const Batch& keys) {
  p.queries = queries.end - queries.begin;
  p.keys = keys.end - keys.begin;
  p.q.batch = queries.begin * p.q.row;
  p.y.batch = queries.begin * p.y.row;
  p.grad_y.batch = queries.begin * p.grad_y.row;
  p.grad_q.batch = queries.begin * p.grad_q.row;
  p.lse.batch = queries.begin * p.lse.row;
  p.k.batch = keys.begin * p.k.row;
  p.v.batch = keys.begin * p.v.row;
  p.grad_k.batch = keys.begin * p.grad_k.row;
  p.grad_v.batch = keys.begin * p.grad_v.row;
  return p;
}

}  // namespace cudarelu::ops::attention

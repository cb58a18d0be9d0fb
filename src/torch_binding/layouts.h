// Where the elements of tensors lie: which layouts kernels read without a copy, and those of
// outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "api.h"
#include "symbolic_dims.h"

namespace cudarelu::binding {

inline bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  return std::ranges::equal(
      a.sym_strides(), b.sym_strides(),
      [](const c10::SymInt& x, const c10::SymInt& y) { return are_equal(x, y); });
}

/// Returns an input whose strides the outputs get, or nullptr if the outputs are contiguous.
inline const at::Tensor* common_layout(const Op& op, Inputs inputs) {
  if (!op.elementwise) return nullptr;
  const at::Tensor* pattern = nullptr;
  bool contiguous = true;
  for (const at::Tensor* input : inputs) {
    if (input == nullptr) continue;
    contiguous = contiguous && input->is_contiguous_or_false();
    if (pattern == nullptr) {
      pattern = input;
    } else if (!contiguous && !same_strides(*input, *pattern)) {
      return nullptr;
    }
  }
  if (contiguous || !pattern->unsafeGetTensorImpl()->is_non_overlapping_and_dense_or_false()) {
    return nullptr;
  }
  return pattern;
}

/// Whether a matrix product may read an input without a copy, as a transposed matrix: x.mT is
/// contiguous, and the matrix is not the flattened form of a tensor with leading dimensions.
inline bool is_transposed(const Parameter& parameter, const at::Tensor& tensor) {
  const bool is_matrix = tensor.dim() == 2 || (tensor.dim() > 2 && parameter.dims.size() == 2);
  return is_matrix && tensor.mT().is_contiguous();
}

/// What Strides has of a tensor, with 0 for dimensions of size 1; empty if the tensor is dense, or
/// has no such strides.
template <class Dim>
using Layout = c10::SmallVector<Dim, 4>;

template <class Dim>
Layout<Dim> layout_of(const Parameter& parameter, const at::Tensor& tensor) {
  if (!parameter.may_be_strided() || tensor.is_contiguous_or_false()) return {};
  const c10::ArrayRef<Dim> sizes = at::symint::sizes<Dim>(tensor);
  const c10::ArrayRef<Dim> strides = at::symint::strides<Dim>(tensor);
  const std::size_t lead = sizes.size() - parameter.dims.size();
  Layout<Dim> layout;
  if (parameter.leading()) {
    layout.emplace_back(0);
    std::optional<Dim> next;  // the stride that continues the dimension
    for (std::size_t i = lead; i-- > 0;) {
      if (DimTraits<Dim>::is_one(sizes[i])) continue;
      if (!next) {
        layout[0] = strides[i];
      } else if (!are_equal(strides[i], *next)) {
        return {};
      }
      next = strides[i] * sizes[i];
    }
  }
  for (std::size_t i = lead; i < sizes.size(); ++i) {
    layout.push_back(DimTraits<Dim>::is_one(sizes[i]) ? Dim(0) : strides[i]);
  }
  if (DimTraits<Dim>::is_one(sizes.back())) layout.back() = 1;
  return are_equal(layout.back(), Dim(1)) ? layout : Layout<Dim>();
}

/// The strides of a dense tensor whose dimensions are in the order of a layout, except that the
/// last one stays the last.
template <class Dim>
c10::SmallVector<Dim, 6> strides_in_order(const Parameter& parameter, std::span<const Dim> sizes,
                                          const Layout<Dim>& layout) {
  // From the outermost dimension to the innermost one. As in torch's own functions, a dimension
  // whose stride is 0 has no memory of its own, and stays where it is.
  c10::SmallVector<std::size_t, 4> order;
  for (std::size_t i = 0; i + 1 < layout.size(); ++i) {
    order.push_back(i);
    for (std::size_t own = i, j = i; j-- > 0;) {
      const Dim& outer = layout[order[j]];
      const Dim& inner = layout[order[own]];
      if (are_equal(outer, Dim(0)) || are_equal(inner, Dim(0))) continue;
      if (!is_less(outer, inner)) break;
      std::swap(order[j], order[own]);
      own = j;
    }
  }
  order.push_back(layout.size() - 1);
  const std::size_t lead = sizes.size() - parameter.dims.size();
  c10::SmallVector<Dim, 6> strides(sizes.size(), Dim(1));
  Dim stride = 1;
  const auto append = [&](std::size_t dim) {
    strides[dim] = stride;
    if (!are_equal(sizes[dim], Dim(0))) stride *= sizes[dim];
  };
  for (std::size_t i = order.size(); i-- > 0;) {
    if (!parameter.leading()) {
      append(order[i]);
    } else if (order[i] > 0) {
      append(lead + order[i] - 1);
    } else {
      for (std::size_t dim = lead; dim-- > 0;) append(dim);
    }
  }
  return strides;
}

/// Whether rows begin at multiples of 16 bytes in a dense copy of a tensor, but not in the tensor.
/// A kernel for CUDA gains more by such rows than the copy takes.
inline bool needs_aligned_copy(const at::Tensor& tensor, const Layout<std::int64_t>& layout) {
  const auto is_aligned = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(tensor.element_size()) % 16 == 0;
  };
  if (!tensor.is_cuda() || !is_aligned(tensor.sizes().back())) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return address % 16 != 0 || !std::all_of(layout.begin(), layout.end() - 1, is_aligned);
}

}  // namespace cudarelu::binding

#pragma once
#include "cudarelu/kernel.h"
namespace star {
struct Affine {
  static constexpr cudarelu::OpSpec spec{
      .signature = "affine(data: T[b, c], warp: T[b, *, 2]) -> y: T[b, *, c]",
      .summary = "Each row of data, times and plus the numbers of each of its pairs.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(b = Shape<start = 0, end = 1>(data)
                       c = Shape<start = 1>(data)
                       sizes = Shape<start = 1, end = -1>(warp)
                       rank = Shape(sizes)
                       ones = ConstantOfShape<value = int64[1] {1}>(rank)
                       shape = Concat<axis = 0>(b, ones, c)
                       wide = Reshape<allowzero = 1>(data, shape)
                       factor, term = Split<axis = -1, num_outputs = 2>(warp)
                       product = Mul(wide, factor)
                       y = Add(product, term))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct ChannelScale {
  static constexpr cudarelu::OpSpec spec{
      .signature = "channel_scale(x: T[n, c, *], scale: T[c]) -> y: T[n, c, *]",
      .summary = "Each channel times a number.",
      .dtypes = cudarelu::floating_types,
      .gradient =
          "x = channel_scale_backward(grad_y, x, scale).grad_x;"
          "scale = channel_scale_backward(grad_y, x, scale).grad_scale",
      .definition = R"(sizes = Shape<start = 2>(x)
                       rank = Shape(sizes)
                       ones = ConstantOfShape<value = int64[1] {1}>(rank)
                       c = Shape(scale)
                       shape = Concat<axis = 0>(c, ones)
                       wide = Reshape<allowzero = 1>(scale, shape)
                       y = Mul(x, wide))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct ChannelScaleBackward {
  static constexpr cudarelu::OpSpec spec{
      .signature =
          "channel_scale_backward(grad_y: T[n, c, *], x: T[n, c, *], scale: T[c]) -> "
          "(grad_x: T[n, c, *], grad_scale: T[c])",
      .summary = "The gradient of channel_scale.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(sizes = Shape<start = 2>(x)
                       rank = Shape(sizes)
                       ones = ConstantOfShape<value = int64[1] {1}>(rank)
                       c = Shape(scale)
                       shape = Concat<axis = 0>(c, ones)
                       wide = Reshape<allowzero = 1>(scale, shape)
                       grad_x = Mul(grad_y, wide)
                       n = Shape<start = 0, end = 1>(x)
                       one = Constant<value_ints = [1]>()
                       counted = Concat<axis = 0>(one, sizes)
                       count = ReduceProd<keepdims = 1>(counted)
                       flat_shape = Concat<axis = 0>(n, c, count)
                       product = Mul(grad_y, x)
                       flat = Reshape<allowzero = 1>(product, flat_shape)
                       axes = Constant<value_ints = [0, 2]>()
                       grad_scale = ReduceSum<keepdims = 0>(flat, axes))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Weigh {
  static constexpr cudarelu::OpSpec spec{
      .signature = "weigh(x: T[n, *], weight: T[n]? = 1) -> y: T[n, *]",
      .summary = "Each row times its weight.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(sizes = Shape<start = 1>(x)
                       rank = Shape(sizes)
                       ones = ConstantOfShape<value = int64[1] {1}>(rank)
                       n = Shape(weight)
                       shape = Concat<axis = 0>(n, ones)
                       wide = Reshape<allowzero = 1>(weight, shape)
                       y = Mul(x, wide))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Cumsum {
  static constexpr cudarelu::OpSpec spec{
      .signature = "cumsum(x: T[*, c @ axis], *, axis: int = -1) -> y: T[*, c @ axis]",
      .summary = "The sums of the elements up to each.",
      .dtypes = cudarelu::DTypeSet::of({cudarelu::DType::float32, cudarelu::DType::float64}),
      .gradient = "x = cumsum_backward(grad_y, axis)",
      .definition = R"(at = Constant<value_int: int = @axis>()
                       y = CumSum(x, at))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct CumsumBackward {
  static constexpr cudarelu::OpSpec spec{
      .signature =
          "cumsum_backward(grad_y: T[*, c @ axis], *, axis: int = -1) -> grad_x: T[*, c @ axis]",
      .summary = "The gradient of cumsum: the sums from each element on.",
      .dtypes = cudarelu::DTypeSet::of({cudarelu::DType::float32, cudarelu::DType::float64}),
      .gradient = "grad_y = cumsum(grad_grad_x, axis)",
      .definition = R"(at = Constant<value_int: int = @axis>()
                       grad_x = CumSum<reverse = 1>(grad_y, at))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Total {
  static constexpr cudarelu::OpSpec spec{
      .signature =
          "total(x: T[*, c @ axis], weight: T[c], *, axis: int) -> (y: T[*], kept: T[*, 1 @ axis])",
      .summary = "A weighted sum.",
      .dtypes = cudarelu::floating_types,
      .gradient =
          "x = total_backward(grad_y, grad_kept, x, weight, axis).grad_x;"
          "weight = total_backward(grad_y, grad_kept, x, weight, axis).grad_weight",
      .definition = R"(at = Constant<value_int: int = @axis>()
                       one = Constant<value_ints = [1]>()
                       axes = Reshape(at, one)
                       rank_shape = Shape(x)
                       rank = Shape(rank_shape)
                       zero = Constant<value_int = 0>()
                       ends = Add(rank, axes)
                       is_negative = Less(axes, zero)
                       place = Where(is_negative, ends, axes)
                       tail = Sub(rank, place)
                       trailing = Sub(tail, one)
                       ones = ConstantOfShape<value = int64[1] {1}>(trailing)
                       c = Shape(weight)
                       shape = Concat<axis = 0>(c, ones)
                       wide = Reshape<allowzero = 1>(weight, shape)
                       product = Mul(x, wide)
                       y = ReduceSum<keepdims = 0>(product, axes)
                       kept = ReduceSum<keepdims = 1>(product, axes))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct TotalBackward {
  static constexpr cudarelu::OpSpec spec{
      .signature =
          "total_backward(grad_y: T[*], grad_kept: T[*, 1 @ axis], x: T[*, c @ axis], "
          "weight: T[c], *, axis: int) -> (grad_x: T[*, c @ axis], grad_weight: T[c])",
      .summary = "The gradient of total.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(at = Constant<value_int: int = @axis>()
                       one = Constant<value_ints = [1]>()
                       axes = Reshape(at, one)
                       rank_shape = Shape(x)
                       rank = Shape(rank_shape)
                       zero = Constant<value_int = 0>()
                       ends = Add(rank, axes)
                       is_negative = Less(axes, zero)
                       place = Where(is_negative, ends, axes)
                       tail = Sub(rank, place)
                       trailing = Sub(tail, one)
                       ones = ConstantOfShape<value = int64[1] {1}>(trailing)
                       c = Shape(weight)
                       shape = Concat<axis = 0>(c, ones)
                       wide = Reshape<allowzero = 1>(weight, shape)
                       raised = Unsqueeze(grad_y, axes)
                       both = Add(raised, grad_kept)
                       grad_x = Mul(both, wide)
                       product = Mul(both, x)
                       point = Squeeze(place)
                       start_none = Constant<value_int = 0>()
                       step = Constant<value_int = 1>()
                       whole = Squeeze(rank)
                       all = Range(start_none, whole, step)
                       others = Equal(all, point)
                       kept_axes = Not(others)
                       reduced = Compress(all, kept_axes)
                       grad_weight = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(product, reduced))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Glu {
  static constexpr cudarelu::OpSpec spec{
      .signature = "glu(x: T[*, 2*d @ axis], *, axis: int = 1) -> y: T[*, d @ axis]",
      .summary = "The first half times the sigmoid of the second one.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(a, b = Split<axis: int = @axis, num_outputs = 2>(x)
                       gate = Sigmoid(b)
                       y = Mul(a, gate))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
}  // namespace star

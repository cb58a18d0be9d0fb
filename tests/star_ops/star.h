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
}  // namespace star

#pragma once

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct SumRows {
  static constexpr OpSpec spec{
      .signature = "sum_rows(x: T[*, c]) -> y: T[c]",
      .summary = "The sum of all rows: over every dimension but the last.",
      .dtypes = floating_types,
      .gradient = "x = expand_rows(grad_y, x)",
      .autocast = Autocast::float32,
      .definition = R"(zero = Constant<value_int = 0>()
                       one = Constant<value_int = 1>()
                       shape = Shape(x)
                       rank = Size(shape)
                       last = Sub(rank, one)
                       axes = Range(zero, last, one)
                       y = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(x, axes))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

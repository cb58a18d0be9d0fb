#pragma once

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct RowSum {
  static constexpr OpSpec spec{
      .signature = "row_sum(x: T[*, c]) -> y: T[*, c]",
      .summary = "The sum along the last dimension, written to every element of the row.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = row_sum(grad_y)",
      .autocast = Autocast::float32,
      .definition = R"(last = Constant<value_ints = [-1]>()
                       sum = ReduceSum<keepdims = 1>(x, last)
                       shape = Shape(x)
                       y = Expand(sum, shape))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

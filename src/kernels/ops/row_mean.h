#pragma once

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct RowMean {
  static constexpr OpSpec spec{
      .signature = "row_mean(x: T[*, c]) -> y: T[*, c]",
      .summary = "The mean along the last dimension, written to every element of the row.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = row_mean(grad_y)",
      .autocast = Autocast::float32,
      .definition = R"(last = Constant<value_ints = [-1]>()
                       mean = ReduceMean<keepdims = 1>(x, last)
                       shape = Shape(x)
                       y = Expand(mean, shape))",
  };
  // In row_sum's files.
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

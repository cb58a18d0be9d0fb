#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct ExpandRows {
  static constexpr OpSpec spec{
      .signature = "expand_rows(row: T[c], like: T[*, c]) -> y: T[*, c]",
      .summary = "`row`, repeated for each row of `like`; this is the gradient of sum_rows.",
      .dtypes = floating_types,
      .gradient = "row = sum_rows(grad_y)",
      .definition = R"(shape = Shape(like)
                       y = Expand(row, shape))",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::none;
  template <class T>
  CUDARELU_FN T operator()(T row, T /*like*/) const {
    return row;
  }
};

}  // namespace cudarelu::ops

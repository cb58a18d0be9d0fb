#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct Scale {
  static constexpr OpSpec spec{
      .signature = "scale(x: T[*], *, factor: float) -> y: T[*]",
      .summary = "factor * x, elementwise.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = scale(grad_y, factor)",
      .definition = R"(factor_f = Constant<value_float: float = @factor>()
                       factor = CastLike(factor_f, x)
                       y = Mul(factor, x))",
  };
  template <class T>
  CUDARELU_FN T operator()(T x, T factor) const {
    return factor * x;
  }
};

}  // namespace cudarelu::ops

#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct LeakyRelu {
  static constexpr OpSpec spec{
      .signature = "leaky_relu(x: T[*], *, negative_slope: float = 0.01) -> y: T[*]",
      .summary = "x where x > 0, else negative_slope * x, elementwise.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = leaky_relu_backward(grad_y, x, negative_slope)",
      .definition = R"(slope_f = Constant<value_float: float = @negative_slope>()
                       slope = CastLike(slope_f, x)
                       y = PRelu(x, slope))",
  };
  template <class T>
  CUDARELU_FN T operator()(T x, T negative_slope) const {
    return x > T(0) ? x : negative_slope * x;
  }
};

}  // namespace cudarelu::ops

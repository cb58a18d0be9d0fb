#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct LeakyReluBackward {
  static constexpr OpSpec spec{
      .signature =
          "leaky_relu_backward(grad_y: T[*], x: T[*], *, negative_slope: float = 0.01) "
          "-> grad_x: T[*]",
      .summary = "grad_y where x > 0, else negative_slope * grad_y.",
      .dtypes = floating_types,
      .in_place = "grad_x = grad_y",
      .gradient = "grad_y = leaky_relu_backward(grad_grad_x, x, negative_slope)",
      .definition = R"(zero_f = Constant<value_float = 0.0>()
                       zero = CastLike(zero_f, x)
                       open = Greater(x, zero)
                       slope_f = Constant<value_float: float = @negative_slope>()
                       slope = CastLike(slope_f, x)
                       scaled = Mul(slope, grad_y)
                       grad_x = Where(open, grad_y, scaled))",
  };
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T x, T negative_slope) const {
    return x > T(0) ? grad_y : negative_slope * grad_y;
  }
};

}  // namespace cudarelu::ops

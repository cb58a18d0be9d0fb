#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct ReluScaleBackward {
  static constexpr OpSpec spec{
      .signature = "relu_scale_backward(grad_y: T[*], x: T[*], *, scale: float) -> grad_x: T[*]",
      .summary = "scale * grad_y where x > 0, else 0; where x is NaN, scale * grad_y.",
      .dtypes = floating_types,
      .in_place = "grad_x = grad_y",
      .gradient = "grad_y = relu_scale_backward(grad_grad_x, x, scale)",
      .definition = R"(zero_f = Constant<value_float = 0.0>()
                       zero = CastLike(zero_f, x)
                       factor_f = Constant<value_float: float = @scale>()
                       factor = CastLike(factor_f, x)
                       closed = LessOrEqual(x, zero)
                       scaled = Mul(factor, grad_y)
                       grad_x = Where(closed, zero, scaled))",
  };
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T x, T scale) const {
    return x <= T(0) ? T(0) : scale * grad_y;
  }
};

}  // namespace cudarelu::ops

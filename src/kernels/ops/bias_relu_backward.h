#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct BiasReluBackward {
  static constexpr OpSpec spec{
      .signature =
          "bias_relu_backward(grad_y: T[*, c], x: T[*, c], bias: T[c], *, "
          "scale: float = 1.0) -> grad_x: T[*, c]",
      .summary = "scale * grad_y where x + bias > 0, else 0; where that is NaN, scale * grad_y.",
      .dtypes = floating_types,
      .in_place = "grad_x = grad_y",
      .gradient = "grad_y = bias_relu_backward(grad_grad_x, x, bias, scale)",
      .definition = R"(zero_f = Constant<value_float = 0.0>()
                       zero = CastLike(zero_f, x)
                       factor_f = Constant<value_float: float = @scale>()
                       factor = CastLike(factor_f, x)
                       sum = Add(x, bias)
                       closed = LessOrEqual(sum, zero)
                       scaled = Mul(factor, grad_y)
                       grad_x = Where(closed, zero, scaled))",
  };
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T x, T bias, T scale) const {
    return x + bias <= T(0) ? T(0) : scale * grad_y;
  }
};

}  // namespace cudarelu::ops

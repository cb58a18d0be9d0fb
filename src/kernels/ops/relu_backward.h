#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct ReluBackward {
  static constexpr OpSpec spec{
      .signature = "relu_backward(grad_y: T[*], y: T[*]) -> grad_x: T[*]",
      .summary = "grad_y where y > 0, else 0; where y is NaN, grad_y.",
      .dtypes = real_types,
      .in_place = "grad_x = grad_y",
      .gradient = "grad_y = relu_backward(grad_grad_x, y)",
      .definition = R"(zero_f = Constant<value_float = 0.0>()
                       zero = CastLike(zero_f, y)
                       closed = LessOrEqual(y, zero)
                       grad_x = Where(closed, zero, grad_y))",
  };
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T y) const {
    return y <= T(0) ? T(0) : grad_y;
  }
};

}  // namespace cudarelu::ops

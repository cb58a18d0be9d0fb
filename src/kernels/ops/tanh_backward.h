#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct TanhBackward {
  static constexpr OpSpec spec{
      .signature = "tanh_backward(grad_y: T[*], y: T[*]) -> grad_x: T[*]",
      .summary = "grad_y * (1 - y * y), elementwise.",
      .dtypes = floating_types,
      .in_place = "grad_x = grad_y",
      .gradient = R"(grad_y = tanh_backward(grad_grad_x, y);
                     y = scale(mul(mul(grad_grad_x, grad_y), y), -2))",
      .definition = R"(one_f = Constant<value_float = 1.0>()
                       one = CastLike(one_f, y)
                       square = Mul(y, y)
                       derivative = Sub(one, square)
                       grad_x = Mul(grad_y, derivative))",
  };
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T y) const {
    return grad_y * (T(1) - y * y);
  }
};

}  // namespace cudarelu::ops

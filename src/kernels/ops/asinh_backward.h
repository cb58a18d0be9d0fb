#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct AsinhBackward {
  static constexpr OpSpec spec{
      .signature = "asinh_backward(grad_y: T[*], x: T[*]) -> grad_x: T[*]",
      .summary = "grad_y / sqrt(1 + x * x), elementwise.",
      .dtypes = floating_types,
      .in_place = "grad_x = grad_y",
      // The derivative in x is -x * (1 + x * x)^(-3/2), a power by three calls of the op.
      .gradient = R"(grad_y = asinh_backward(grad_grad_x, x);
                     x = scale(mul(asinh_backward(asinh_backward(asinh_backward(
                         mul(grad_grad_x, grad_y), x), x), x), x), -1))",
      .definition = R"(one_f = Constant<value_float = 1.0>()
                       one = CastLike(one_f, x)
                       huge_f = Constant<value_float = 1e9>()
                       huge = CastLike(huge_f, x)
                       magnitude = Abs(x)
                       is_huge = Greater(magnitude, huge)
                       square = Mul(x, x)
                       sum = Add(one, square)
                       root = Sqrt(sum)
                       divisor = Where(is_huge, magnitude, root)
                       grad_x = Div(grad_y, divisor))",
  };
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T x) const {
    // From 1e9 on, the 1 has no effect after rounding, and x * x may overflow.
    const T magnitude = std::abs(x);
    return grad_y / (magnitude > T(1e9) ? magnitude : std::sqrt(T(1) + x * x));
  }
};

}  // namespace cudarelu::ops

#pragma once

#include <cmath>

#include "cudarelu/elementwise.h"

namespace my {

using namespace cudarelu;

struct Swish {
  static constexpr OpSpec spec{
      .signature = "swish(x: T[*], *, beta: float = 1.0 in [0, inf]) -> y: T[*]",
      .summary = "x sigmoid(beta x), elementwise.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = swish_backward(grad_y, x, beta)",
      .definition = R"(beta_f = Constant<value_float: float = @beta>()
                       b = CastLike(beta_f, x)
                       bx = Mul(b, x)
                       s = Sigmoid(bx)
                       y = Mul(x, s))",
  };
  template <class T>
  CUDARELU_FN T operator()(T x, T beta) const {
    return x / (T(1) + std::exp(-beta * x));
  }
};

struct SwishBackward {
  static constexpr OpSpec spec{
      .signature =
          "swish_backward(grad_y: T[*], x: T[*], *, beta: float = 1.0 in [0, inf]) -> grad_x: T[*]",
      .summary = "The gradient of swish, elementwise.",
      .dtypes = floating_types,
      .definition = R"(beta_f = Constant<value_float: float = @beta>()
                       b = CastLike(beta_f, x)
                       bx = Mul(b, x)
                       s = Sigmoid(bx)
                       y = Mul(bx, s)
                       sy = Mul(s, y)
                       sum = Add(s, y)
                       d = Sub(sum, sy)
                       grad_x = Mul(grad_y, d))",
  };
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T x, T beta) const {
    const T s = T(1) / (T(1) + std::exp(-beta * x));
    return grad_y * (s + beta * x * s * (T(1) - s));
  }
};

}  // namespace my

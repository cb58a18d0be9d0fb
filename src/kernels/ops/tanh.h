#pragma once

#include "cudarelu/detail/piecewise.h"
#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct Tanh {
  static constexpr OpSpec spec{
      .signature = "tanh(x: T[*]) -> y: T[*]",
      .summary = "The hyperbolic tangent, elementwise.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = tanh_backward(grad_y, y)",
      .definition = "y = Tanh(x)",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  static constexpr const math::PiecewisePolynomial& piecewise = math::tanh_piecewise;
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    return math::tanh(x);
  }
};

}  // namespace cudarelu::ops

#pragma once

#include "pointwise/op.h"

namespace cudarelu::ops {

struct Asinh {
  static constexpr OpSpec spec{
      .signature = "asinh(x: T[*]) -> y: T[*]",
      .summary = "The inverse hyperbolic sine, elementwise.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = asinh_backward(grad_y, x)",
      .definition = "y = Asinh(x)",
  };
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    return std::asinh(x);
  }
};

}  // namespace cudarelu::ops

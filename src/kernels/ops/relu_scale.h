#pragma once

#include "cudarelu/activation_functions.h"
#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct ReluScale {
  static constexpr OpSpec spec{
      .signature = "relu_scale(x: T[*], *, scale: float) -> y: T[*]",
      .summary = "scale * max(x, 0), elementwise; NaN stays NaN.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = relu_scale_backward(grad_y, x, scale)",
      .definition = R"(factor_f = Constant<value_float: float = @scale>()
                       factor = CastLike(factor_f, x)
                       rectified = Relu(x)
                       y = Mul(factor, rectified))",
  };
  template <class T>
  CUDARELU_FN T operator()(T x, T scale) const {
    return scale * relu(x);
  }
};

}  // namespace cudarelu::ops

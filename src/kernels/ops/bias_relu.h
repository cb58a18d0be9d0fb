#pragma once

#include "cudarelu/activation_functions.h"
#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct BiasRelu {
  static constexpr OpSpec spec{
      .signature = "bias_relu(x: T[*, c], bias: T[c], *, scale: float = 1.0) -> y: T[*, c]",
      .summary = "scale * max(x + bias, 0), the bias along the last dimension; NaN stays NaN.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = R"(x = bias_relu_backward(grad_y, x, bias, scale);
                     bias = sum_rows(bias_relu_backward(grad_y, x, bias, scale)))",
      .definition = R"(factor_f = Constant<value_float: float = @scale>()
                       factor = CastLike(factor_f, x)
                       sum = Add(x, bias)
                       rectified = Relu(sum)
                       y = Mul(factor, rectified))",
  };
  template <class T>
  CUDARELU_FN T operator()(T x, T bias, T scale) const {
    return scale * relu(x + bias);
  }
};

}  // namespace cudarelu::ops

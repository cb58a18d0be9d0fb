#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

struct LinearRelu {
  static constexpr OpSpec spec{
      .signature = "linear_relu(x: T[*, k], weight: T[n, k], bias: T[n]?) -> y: T[*, n]",
      .summary = "max(x weight^T + bias, 0), for each row of x; NaN stays NaN.",
      .dtypes = floating_types,
      .gradient = R"(x = linear_input_backward(relu_backward(grad_y, y), weight);
                     weight = linear_weight_backward(relu_backward(grad_y, y), x);
                     bias = sum_rows(relu_backward(grad_y, y)))",
      .autocast = Autocast::lower,
      .definition = R"(unit = Constant<value_ints = [1]>()
                       leading = Shape<end = -1>(x)
                       counted = Concat<axis = 0>(unit, leading)
                       rows = ReduceProd<keepdims = 1>(counted)
                       n = Shape<end = 1>(weight)
                       k = Shape<start = 1>(weight)
                       matrix_shape = Concat<axis = 0>(rows, k)
                       y_shape = Concat<axis = 0>(leading, n)
                       matrix = Reshape<allowzero = 1>(x, matrix_shape)
                       sum = Gemm<transB = 1>(matrix, weight, bias)
                       rectified = Relu(sum)
                       y = Reshape<allowzero = 1>(rectified, y_shape))",
  };
  static Gemm gemm(const Call& call) { return linear_product(call, Activation::relu); }
};

}  // namespace cudarelu::ops

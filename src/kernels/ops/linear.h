#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

struct Linear {
  static constexpr OpSpec spec{
      .signature = "linear(x: T[*, k], weight: T[n, k], bias: T[n]?) -> y: T[*, n]",
      .summary = "x weight^T + bias, for each row of x.",
      .dtypes = floating_types,
      .gradient = R"(x = linear_input_backward(grad_y, weight);
                     weight = linear_weight_backward(grad_y, x);
                     bias = sum_rows(grad_y))",
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
                       y = Reshape<allowzero = 1>(sum, y_shape))",
  };
  static Gemm gemm(const Call& call) { return linear_product(call, Activation::none); }
};

}  // namespace cudarelu::ops

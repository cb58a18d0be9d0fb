#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

struct LinearAdd {
  static constexpr OpSpec spec{
      .signature =
          "linear_add(x: T[*, k], weight: T[n, k], other: T[*, n], bias: T[n]?) -> y: T[*, n]",
      .summary =
          "x weight^T + bias + other, for each row of x: a linear layer and the sum around it.",
      .dtypes = floating_types,
      .gradient = R"(x = linear_input_backward(grad_y, weight);
                     weight = linear_weight_backward(grad_y, x);
                     other = grad_y;
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
                       sum_matrix = Gemm<transB = 1>(matrix, weight, bias)
                       sum = Reshape<allowzero = 1>(sum_matrix, y_shape)
                       y = Add(sum, other))",
  };
  static Gemm gemm(const Call& call) {
    return linear_product_with_other(call, Activation::none, Combine::add);
  }
};

}  // namespace cudarelu::ops

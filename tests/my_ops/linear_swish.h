#pragma once

#include "cudarelu/product.h"

namespace my {

struct LinearSwish {
  static constexpr cudarelu::OpSpec spec{
      .signature = "linear_swish(x: T[*, k], weight: T[n, k], bias: T[n]?) -> y: T[*, n]",
      .summary = "swish(x weight^T + bias), for each row of x.",
      .dtypes = cudarelu::floating_types,
      .autocast = cudarelu::Autocast::lower,
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
                       s = Sigmoid(sum)
                       y = Mul(sum, s))",
  };
  static cudarelu::Gemm gemm(const cudarelu::Call& call) {
    return cudarelu::linear_product(call, cudarelu::Activation::silu);
  }
};

}  // namespace my

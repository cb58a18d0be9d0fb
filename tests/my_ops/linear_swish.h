#pragma once

#include "cudarelu/product.h"

namespace my {

inline constexpr std::string_view linear_swish_result = R"(
  sum = Reshape<allowzero = 1>(sum_matrix, y_shape)
  s = Sigmoid(sum)
  y = Mul(sum, s))";

struct LinearSwish {
  static constexpr cudarelu::OpSpec spec{
      .signature = "linear_swish(x: T[*, k], weight: T[n, k], bias: T[n]?) -> y: T[*, n]",
      .summary = "swish(x weight^T + bias), for each row of x.",
      .dtypes = cudarelu::floating_types,
      .autocast = cudarelu::Autocast::lower,
      .definition = cudarelu::joined<cudarelu::linear_text, linear_swish_result>,
  };
  static cudarelu::Gemm gemm(const cudarelu::Call& call) {
    return cudarelu::linear_product(call, cudarelu::Activation::silu);
  }
};

}  // namespace my

#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

inline constexpr std::string_view linear_result = R"(
  y = Reshape<allowzero = 1>(sum_matrix, y_shape))";

struct Linear {
  static constexpr OpSpec spec{
      .signature = "linear(x: T[*, k], weight: T[n, k], bias: T[n]?) -> y: T[*, n]",
      .summary = "x weight^T + bias, for each row of x.",
      .dtypes = floating_types,
      .gradient = R"(x = linear_input_backward(grad_y, weight);
                     weight = linear_weight_backward(grad_y, x);
                     bias = sum_rows(grad_y))",
      .autocast = Autocast::lower,
      .definition = joined<linear_text, linear_result>,
  };
  static Gemm gemm(const Call& call) { return linear_product(call, Activation::none); }
};

}  // namespace cudarelu::ops

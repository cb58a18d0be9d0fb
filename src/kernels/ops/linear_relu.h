#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

inline constexpr std::string_view linear_relu_result = R"(
  rectified = Relu(sum_matrix)
  y = Reshape<allowzero = 1>(rectified, y_shape))";

struct LinearRelu {
  static constexpr OpSpec spec{
      .signature = "linear_relu(x: T[*, k], weight: T[n, k], bias: T[n]?) -> y: T[*, n]",
      .summary = "max(x weight^T + bias, 0), for each row of x; NaN stays NaN.",
      .dtypes = floating_types,
      .gradient = R"(x = linear_input_backward(relu_backward(grad_y, y), weight);
                     weight = linear_weight_backward(relu_backward(grad_y, y), x);
                     bias = sum_rows(relu_backward(grad_y, y)))",
      .autocast = Autocast::lower,
      .definition = joined<linear_text, linear_relu_result>,
  };
  static Gemm gemm(const Call& call) { return linear_product(call, Activation::relu); }
};

}  // namespace cudarelu::ops

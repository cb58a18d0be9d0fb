#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

inline constexpr std::string_view linear_add_result = R"(
  sum = Reshape<allowzero = 1>(sum_matrix, y_shape)
  y = Add(sum, other))";

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
      .definition = joined<linear_text, linear_add_result>,
  };
  static Gemm gemm(const Call& call) {
    return linear_product_with_other(call, Activation::none, Combine::add);
  }
};

}  // namespace cudarelu::ops

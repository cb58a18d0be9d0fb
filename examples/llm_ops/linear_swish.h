// A linear layer with SiLU, by cudarelu's engines for matrix products.
#pragma once

#include "cudarelu/product.h"

namespace llm {

using namespace cudarelu;

inline constexpr std::string_view linear_swish_result = R"(
  sum = Reshape<allowzero = 1>(sum_matrix, y_shape)
  logistic = Sigmoid(sum)
  y = Mul(sum, logistic))";

struct LinearSwish {
  static constexpr OpSpec spec{
      .signature = "linear_swish(x: T[*, k], weight: T[n, k], bias: T[n]?) -> y: T[*, n]",
      .summary = "silu(x weight^T + bias), for each row of x.",
      .dtypes = floating_types,
      .gradient = "as linear_swish_with_sum",
      .autocast = Autocast::lower,
      .definition = joined<linear_text, linear_swish_result>,
  };
  static Gemm gemm(const Call& call) { return linear_product(call, Activation::silu); }
};

struct LinearSwishWithSum {
  static constexpr OpSpec spec{
      .signature =
          "linear_swish_with_sum(x: T[*, k], weight: T[n, k], bias: T[n]?) "
          "-> (y: T[*, n], sum: T[*, n])",
      .summary = "linear_swish, and the sum x weight^T + bias, which the gradient needs.",
      .dtypes = floating_types,
      .gradient = R"(x = cudarelu::linear_input_backward(
                         grad_sum + silu_backward(grad_y, sum), weight);
                     weight = cudarelu::linear_weight_backward(
                         grad_sum + silu_backward(grad_y, sum), x);
                     bias = cudarelu::sum_rows(grad_sum + silu_backward(grad_y, sum)))",
      .autocast = Autocast::lower,
      .definition = LinearSwish::spec.definition,  // it contains the sum
  };
  static Gemm gemm(const Call& call) {
    Gemm gemm = linear_product(call, Activation::silu);
    gemm.sum = call.outputs[1].data;
    return gemm;
  }
};

}  // namespace llm

#pragma once

#include "cudarelu/product.h"
#include "ops/linear_gelu.h"

namespace cudarelu::ops {

struct LinearGeluWithSum {
  static constexpr OpSpec spec{
      .signature =
          "linear_gelu_with_sum(x: T[*, k], weight: T[n, k], bias: T[n]?, *, "
          "approximate: none | tanh = none) -> (y: T[*, n], sum: T[*, n])",
      .summary = "linear_gelu, and the sum x weight^T + bias, which the gradient needs.",
      .dtypes = floating_types,
      .gradient = R"(x = linear_input_backward(
                         grad_sum + gelu_backward(grad_y, sum, approximate), weight);
                     weight = linear_weight_backward(
                         grad_sum + gelu_backward(grad_y, sum, approximate), x);
                     bias = sum_rows(grad_sum + gelu_backward(grad_y, sum, approximate)))",
      .autocast = Autocast::lower,
      .definition = LinearGelu::spec.definition,  // it contains the sum
  };
  static Gemm gemm(const Call& call) {
    Gemm gemm = linear_product(call, gelu_of(call));
    gemm.sum = call.outputs[1].data;
    return gemm;
  }
};

}  // namespace cudarelu::ops

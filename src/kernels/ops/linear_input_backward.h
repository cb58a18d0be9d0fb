#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

struct LinearInputBackward {
  static constexpr OpSpec spec{
      .signature = "linear_input_backward(grad_y: T[*, n], weight: T[n, k]) -> grad_x: T[*, k]",
      .summary = "grad_y weight, for each row of grad_y: the gradient of linear with respect to x.",
      .dtypes = floating_types,
      .gradient = R"(grad_y = linear(grad_grad_x, weight, none);
                     weight = linear_weight_backward(grad_y, grad_grad_x))",
      .autocast = Autocast::lower,
      .definition = "grad_x = MatMul(grad_y, weight)",
  };
  static Gemm gemm(const Call& call) {
    const TensorView& grad_y = call.inputs[0];
    const TensorView& weight = call.inputs[1];
    return {.dtype = grad_y.dtype,
            .batch = 1,
            .m = leading_size(grad_y, 1),
            .n = weight.shape[1],
            .k = weight.shape[0],
            .a = grad_y.data,
            .b = weight.data,
            .d = call.outputs[0].data,
            .a_transposed = grad_y.transposed,
            .b_transposed = weight.transposed};
  }
};

}  // namespace cudarelu::ops

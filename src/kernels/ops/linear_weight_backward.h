#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

struct LinearWeightBackward {
  static constexpr OpSpec spec{
      .signature = "linear_weight_backward(grad_y: T[*, n], x: T[*, k]) -> grad_weight: T[n, k]",
      .summary = "grad_y^T x, over all rows: the gradient of linear with respect to its weight.",
      .dtypes = floating_types,
      .gradient = R"(grad_y = linear(x, grad_grad_weight, none);
                     x = linear_input_backward(grad_y, grad_grad_weight))",
      .autocast = Autocast::lower,
      .definition = R"(unit = Constant<value_ints = [1]>()
                       leading = Shape<end = -1>(x)
                       counted = Concat<axis = 0>(unit, leading)
                       rows = ReduceProd<keepdims = 1>(counted)
                       n = Shape<start = -1>(grad_y)
                       k = Shape<start = -1>(x)
                       grad_y_shape = Concat<axis = 0>(rows, n)
                       x_shape = Concat<axis = 0>(rows, k)
                       grad_y_matrix = Reshape<allowzero = 1>(grad_y, grad_y_shape)
                       x_matrix = Reshape<allowzero = 1>(x, x_shape)
                       grad_weight = Gemm<transA = 1>(grad_y_matrix, x_matrix))",
  };
  static Gemm gemm(const Call& call) {
    const TensorView& grad_y = call.inputs[0];
    const TensorView& x = call.inputs[1];
    return {.dtype = x.dtype,
            .batch = 1,
            .m = grad_y.shape.back(),
            .n = x.shape.back(),
            .k = leading_size(x, 1),
            .a = grad_y.data,
            .b = x.data,
            .d = call.outputs[0].data,
            .a_transposed = !grad_y.transposed,
            .b_transposed = x.transposed};
  }
};

}  // namespace cudarelu::ops

#pragma once

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct SoftmaxBackward {
  static constexpr OpSpec spec{
      .signature = "softmax_backward(grad_y: T[*, c], y: T[*, c]) -> grad_x: T[*, c]",
      .summary = "y * (grad_y - sum(grad_y * y)), the sum along the last dimension.",
      .dtypes = floating_types,
      .in_place = "grad_x = grad_y",
      .gradient = R"(grad_y = softmax_backward(grad_grad_x, y);
                     y = add(
                         mul(grad_grad_x, scaled_add(row_sum(mul(grad_y, y)), grad_y, -1)),
                         scale(mul(grad_y, row_sum(mul(grad_grad_x, y))), -1)))",
      .definition = R"(last = Constant<value_ints = [-1]>()
                       product = Mul(grad_y, y)
                       dot = ReduceSum<keepdims = 1>(product, last)
                       centred = Sub(grad_y, dot)
                       grad_x = Mul(y, centred))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

// SwiGLU in the epilogue of the product that makes its gate, by cudarelu's engines.
#pragma once

#include "cudarelu/product.h"

namespace llm {

using namespace cudarelu;

struct LinearSwiglu {
  static constexpr OpSpec spec{
      .signature =
          "linear_swiglu(x: T[*, k], weight: T[n, k], up: T[*, n], bias: T[n]?) -> y: T[*, n]",
      .summary = "silu(x weight^T + bias) * up, for each row of x.",
      .dtypes = floating_types,
      .gradient = "as linear_swiglu_with_gate",
      .autocast = Autocast::lower,
      .definition = R"(unit = Constant<value_ints = [1]>()
                       leading = Shape<end = -1>(x)
                       counted = Concat<axis = 0>(unit, leading)
                       rows = ReduceProd<keepdims = 1>(counted)
                       n = Shape<end = 1>(weight)
                       k = Shape<start = 1>(weight)
                       matrix_shape = Concat<axis = 0>(rows, k)
                       y_shape = Concat<axis = 0>(leading, n)
                       matrix = Reshape<allowzero = 1>(x, matrix_shape)
                       gate_matrix = Gemm<transB = 1>(matrix, weight, bias)
                       gate = Reshape<allowzero = 1>(gate_matrix, y_shape)
                       logistic = Sigmoid(gate)
                       activated = Mul(gate, logistic)
                       y = Mul(activated, up))",
  };
  static Gemm gemm(const Call& call) {
    return linear_product_with_other(call, Activation::silu, Combine::multiply);
  }
};

struct LinearSwigluWithGate {
  static constexpr OpSpec spec{
      .signature =
          "linear_swiglu_with_gate(x: T[*, k], weight: T[n, k], up: T[*, n], bias: T[n]?) "
          "-> (y: T[*, n], gate: T[*, n])",
      .summary = "linear_swiglu, and the gate x weight^T + bias, which the gradient needs.",
      .dtypes = floating_types,
      .gradient = R"(x = cudarelu::linear_input_backward(
                         grad_gate + swiglu_backward(grad_y, gate, up), weight);
                     weight = cudarelu::linear_weight_backward(
                         grad_gate + swiglu_backward(grad_y, gate, up), x);
                     up = swiglu(gate, grad_y);
                     bias = cudarelu::sum_rows(grad_gate + swiglu_backward(grad_y, gate, up)))",
      .autocast = Autocast::lower,
      .definition = LinearSwiglu::spec.definition,  // it contains the gate
  };
  static Gemm gemm(const Call& call) {
    Gemm gemm = linear_product_with_other(call, Activation::silu, Combine::multiply);
    gemm.sum = call.outputs[1].data;
    return gemm;
  }
};

}  // namespace llm

// SwiGLU in the epilogue of the product that makes its gate, by cudarelu's engines.
#pragma once

#include "cudarelu/product.h"

namespace llm {

using namespace cudarelu;

inline constexpr std::string_view linear_swiglu_result = R"(
  gate = Reshape<allowzero = 1>(sum_matrix, y_shape)
  logistic = Sigmoid(gate)
  activated = Mul(gate, logistic)
  y = Mul(activated, up))";

struct LinearSwiglu {
  static constexpr OpSpec spec{
      .signature =
          "linear_swiglu(x: T[*, k], weight: T[n, k], up: T[*, n], bias: T[n]?) -> y: T[*, n]",
      .summary = "silu(x weight^T + bias) * up, for each row of x.",
      .dtypes = floating_types,
      .gradient = "as linear_swiglu_with_gate",
      .autocast = Autocast::lower,
      .definition = joined<linear_text, linear_swiglu_result>,
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

// SwiGLU, elementwise: complete in this file, for both devices.
#pragma once

#include "cudarelu/activation_functions.h"
#include "cudarelu/elementwise.h"

namespace llm {

using namespace cudarelu;

struct Swiglu {
  static constexpr OpSpec spec{
      .signature = "swiglu(gate: T[*], up: T[*]) -> y: T[*]",
      .summary = "silu(gate) * up, elementwise, where silu(x) = x / (1 + exp(-x)).",
      .dtypes = floating_types,
      .in_place = "y = gate",
      .gradient = "gate = swiglu_backward(grad_y, gate, up); up = swiglu(gate, grad_y)",
      .definition = R"(logistic = Sigmoid(gate)
                       activated = Mul(gate, logistic)
                       y = Mul(activated, up))",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  template <class T>
  CUDARELU_FN T operator()(T gate, T up) const {
    return silu(gate) * up;
  }
#ifdef __CUDACC__
  static __device__ float for_halves(float gate, float up) {
    return fast::silu<BFloat16>(gate) * up;
  }
#endif
};

struct SwigluBackward {
  static constexpr OpSpec spec{
      .signature = "swiglu_backward(grad_y: T[*], gate: T[*], up: T[*]) -> grad_gate: T[*]",
      .summary =
          "grad_y * up times the derivative of silu at gate: the gradient of swiglu in gate.",
      .dtypes = floating_types,
      .in_place = "grad_gate = grad_y",
      .gradient = R"(grad_y = swiglu_backward(grad_grad_gate, gate, up);
                     gate = cudarelu::mul(cudarelu::mul(grad_grad_gate, grad_y),
                                          cudarelu::mul(up, silu_second_derivative(gate)));
                     up = swiglu_backward(grad_grad_gate, gate, grad_y))",
      .definition = R"(one_f = Constant<value_float = 1.0>()
                       one = CastLike(one_f, gate)
                       logistic = Sigmoid(gate)
                       rest = Sub(one, logistic)
                       bend = Mul(gate, rest)
                       stretch = Add(one, bend)
                       derivative = Mul(logistic, stretch)
                       scaled = Mul(grad_y, up)
                       grad_gate = Mul(scaled, derivative))",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T gate, T up) const {
    const math::Logistic<T> logistic = math::logistic(gate);
    return grad_y * up * (logistic.value + gate * logistic.slope);
  }
};

}  // namespace llm

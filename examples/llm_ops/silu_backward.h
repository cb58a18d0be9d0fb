// The first two derivatives of silu(x) = x / (1 + exp(-x)), for the gradients of linear_swish and
// swiglu.
#pragma once

#include "cudarelu/elementwise.h"
#include "cudarelu/transcendental.h"

namespace llm {

using namespace cudarelu;

struct SiluBackward {
  static constexpr OpSpec spec{
      .signature = "silu_backward(grad_y: T[*], x: T[*]) -> grad_x: T[*]",
      .summary = "grad_y times the derivative of silu at x.",
      .dtypes = floating_types,
      .in_place = "grad_x = grad_y",
      .gradient = R"(grad_y = silu_backward(grad_grad_x, x);
                     x = cudarelu::mul(cudarelu::mul(grad_grad_x, grad_y),
                                       silu_second_derivative(x)))",
      .definition = R"(one_f = Constant<value_float = 1.0>()
                       one = CastLike(one_f, x)
                       logistic = Sigmoid(x)
                       rest = Sub(one, logistic)
                       bend = Mul(x, rest)
                       stretch = Add(one, bend)
                       derivative = Mul(logistic, stretch)
                       grad_x = Mul(grad_y, derivative))",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T x) const {
    const math::Logistic<T> logistic = math::logistic(x);
    return grad_y * (logistic.value + x * logistic.slope);
  }
};

struct SiluSecondDerivative {
  static constexpr OpSpec spec{
      .signature = "silu_second_derivative(x: T[*]) -> y: T[*]",
      .summary = "The second derivative of silu at x.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .definition = R"(one_f = Constant<value_float = 1.0>()
                       one = CastLike(one_f, x)
                       two_f = Constant<value_float = 2.0>()
                       two = CastLike(two_f, x)
                       logistic = Sigmoid(x)
                       rest = Sub(one, logistic)
                       slope = Mul(logistic, rest)
                       difference = Sub(rest, logistic)
                       bend = Mul(x, difference)
                       stretch = Add(two, bend)
                       y = Mul(slope, stretch))",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    const math::Logistic<T> logistic = math::logistic(x);
    return logistic.slope * (2 + x * (1 - 2 * logistic.value));
  }
};

}  // namespace llm

#pragma once

#include "cudarelu/activation_functions.h"
#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct Gelu {
  static constexpr OpSpec spec{
      .signature = "gelu(x: T[*], *, approximate: none | tanh = none) -> y: T[*]",
      .summary = "x / 2 * (1 + erf(x / sqrt 2)), or the approximation with tanh.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = gelu_backward(grad_y, x, approximate)",
      .definition = R"(half_d = Constant<value = double {0.5}>()
                       half = CastLike(half_d, x)
                       one_d = Constant<value = double {1.0}>()
                       one = CastLike(one_d, x)
                       root_d = Constant<value = double {1.4142135623730951}>()
                       root = CastLike(root_d, x)
                       cubic_d = Constant<value = double {0.044715}>()
                       cubic = CastLike(cubic_d, x)
                       factor_d = Constant<value = double {0.7978845608028654}>()
                       factor = CastLike(factor_d, x)
                       quotient = Div(x, root)
                       erf = Erf(quotient)
                       square = Mul(x, x)
                       cube = Mul(x, square)
                       scaled_cube = Mul(cubic, cube)
                       bent = Add(x, scaled_cube)
                       argument = Mul(factor, bent)
                       tanh = Tanh(argument)
                       tanh_label = Constant<value_int = 1>()
                       label = Constant<value_int: int = @approximate>()
                       is_tanh = Equal(label, tanh_label)
                       sigmoid = Where(is_tanh, tanh, erf)
                       sum = Add(sigmoid, one)
                       product = Mul(x, sum)
                       y = Mul(half, product))",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  template <class T>
  CUDARELU_FN T operator()(T x, T approximate) const {
    return approximate == 0 ? gelu::by_erf(x) : gelu::by_tanh(x);
  }
};

}  // namespace cudarelu::ops

#pragma once

#include "cudarelu/activation_functions.h"
#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct GeluBackward {
  static constexpr OpSpec spec{
      .signature =
          "gelu_backward(grad_y: T[*], x: T[*], *, approximate: none | tanh = none) "
          "-> grad_x: T[*]",
      .summary = "grad_y times the derivative of gelu at x.",
      .dtypes = floating_types,
      .in_place = "grad_x = grad_y",
      .gradient = R"(grad_y = gelu_backward(grad_grad_x, x, approximate);
                     x = mul(mul(grad_grad_x, grad_y), gelu_second_derivative(x, approximate)))",
      // Twice the derivative is 1 + f + x f', where f is erf or tanh.
      .definition = R"(half_d = Constant<value = double {0.5}>()
                       half = CastLike(half_d, x)
                       one_d = Constant<value = double {1.0}>()
                       one = CastLike(one_d, x)
                       root_d = Constant<value = double {1.4142135623730951}>()
                       root = CastLike(root_d, x)
                       cubic_d = Constant<value = double {0.044715}>()
                       cubic = CastLike(cubic_d, x)
                       thrice_d = Constant<value = double {0.134145}>()
                       thrice = CastLike(thrice_d, x)
                       factor_d = Constant<value = double {0.7978845608028654}>()
                       factor = CastLike(factor_d, x)
                       quotient = Div(x, root)
                       erf = Erf(quotient)
                       square = Mul(x, x)
                       half_square = Mul(half, square)
                       exponent = Neg(half_square)
                       bell = Exp(exponent)
                       erf_slope = Mul(factor, bell)
                       cube = Mul(x, square)
                       scaled_cube = Mul(cubic, cube)
                       bent = Add(x, scaled_cube)
                       argument = Mul(factor, bent)
                       tanh = Tanh(argument)
                       tanh_square = Mul(tanh, tanh)
                       outer = Sub(one, tanh_square)
                       scaled_square = Mul(thrice, square)
                       bent_slope = Add(one, scaled_square)
                       inner = Mul(factor, bent_slope)
                       tanh_slope = Mul(outer, inner)
                       tanh_label = Constant<value_int = 1>()
                       label = Constant<value_int: int = @approximate>()
                       is_tanh = Equal(label, tanh_label)
                       sigmoid = Where(is_tanh, tanh, erf)
                       slope = Where(is_tanh, tanh_slope, erf_slope)
                       left = Add(sigmoid, one)
                       right = Mul(x, slope)
                       sum = Add(left, right)
                       derivative = Mul(half, sum)
                       grad_x = Mul(grad_y, derivative))",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  template <class T>
  CUDARELU_FN T operator()(T grad_y, T x, T approximate) const {
    return grad_y * (approximate == 0 ? gelu::slope_by_erf(x) : gelu::slope_by_tanh(x));
  }
};

}  // namespace cudarelu::ops

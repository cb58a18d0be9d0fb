#pragma once

#include "cudarelu/activation_functions.h"
#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct GeluSecondDerivative {
  static constexpr OpSpec spec{
      .signature = "gelu_second_derivative(x: T[*], *, approximate: none | tanh = none) -> y: T[*]",
      .summary = "The second derivative of gelu at x.",
      .dtypes = floating_types,
      .in_place = "y = x",
      // f' + x f'' / 2, where f is erf or tanh. For erf, f'' is -x f'.
      .definition = R"(half_d = Constant<value = double {0.5}>()
                       half = CastLike(half_d, x)
                       one_d = Constant<value = double {1.0}>()
                       one = CastLike(one_d, x)
                       two_d = Constant<value = double {2.0}>()
                       two = CastLike(two_d, x)
                       cubic_d = Constant<value = double {0.044715}>()
                       cubic = CastLike(cubic_d, x)
                       thrice_d = Constant<value = double {0.134145}>()
                       thrice = CastLike(thrice_d, x)
                       factor_d = Constant<value = double {0.7978845608028654}>()
                       factor = CastLike(factor_d, x)
                       square = Mul(x, x)
                       half_square = Mul(half, square)
                       exponent = Neg(half_square)
                       bell = Exp(exponent)
                       erf_slope = Mul(factor, bell)
                       x_erf_slope = Mul(x, erf_slope)
                       erf_curvature = Neg(x_erf_slope)
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
                       twice_thrice = Mul(two, thrice)
                       bend = Mul(twice_thrice, x)
                       inner_slope = Mul(factor, bend)
                       inner_square = Mul(inner, inner)
                       twice_tanh = Mul(two, tanh)
                       loss = Mul(twice_tanh, inner_square)
                       gain = Sub(inner_slope, loss)
                       tanh_curvature = Mul(outer, gain)
                       tanh_label = Constant<value_int = 1>()
                       label = Constant<value_int: int = @approximate>()
                       is_tanh = Equal(label, tanh_label)
                       slope = Where(is_tanh, tanh_slope, erf_slope)
                       curvature = Where(is_tanh, tanh_curvature, erf_curvature)
                       x_curvature = Mul(x, curvature)
                       half_x_curvature = Mul(half, x_curvature)
                       y = Add(slope, half_x_curvature))",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  template <class T>
  CUDARELU_FN T operator()(T x, T approximate) const {
    return approximate == 0 ? gelu::curvature_by_erf(x) : gelu::curvature_by_tanh(x);
  }
};

}  // namespace cudarelu::ops

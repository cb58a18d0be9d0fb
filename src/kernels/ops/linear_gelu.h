#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

inline constexpr std::string_view linear_gelu_result = R"(
  sum = Reshape<allowzero = 1>(sum_matrix, y_shape)
  half_d = Constant<value = double {0.5}>()
  half = CastLike(half_d, x)
  one_d = Constant<value = double {1.0}>()
  one = CastLike(one_d, x)
  root_d = Constant<value = double {1.4142135623730951}>()
  root = CastLike(root_d, x)
  cubic_d = Constant<value = double {0.044715}>()
  cubic = CastLike(cubic_d, x)
  factor_d = Constant<value = double {0.7978845608028654}>()
  factor = CastLike(factor_d, x)
  quotient = Div(sum, root)
  erf = Erf(quotient)
  square = Mul(sum, sum)
  cube = Mul(sum, square)
  scaled_cube = Mul(cubic, cube)
  bent = Add(sum, scaled_cube)
  argument = Mul(factor, bent)
  tanh = Tanh(argument)
  tanh_label = Constant<value_int = 1>()
  label = Constant<value_int: int = @approximate>()
  is_tanh = Equal(label, tanh_label)
  sigmoid = Where(is_tanh, tanh, erf)
  one_more = Add(sigmoid, one)
  product = Mul(sum, one_more)
  y = Mul(half, product))";

struct LinearGelu {
  static constexpr OpSpec spec{
      .signature =
          "linear_gelu(x: T[*, k], weight: T[n, k], bias: T[n]?, *, "
          "approximate: none | tanh = none) -> y: T[*, n]",
      .summary = "gelu(x weight^T + bias), for each row of x.",
      .dtypes = floating_types,
      .gradient = "as linear_gelu_with_sum",
      .autocast = Autocast::lower,
      .definition = joined<linear_text, linear_gelu_result>,
  };
  static Gemm gemm(const Call& call) { return linear_product(call, gelu_of(call)); }
};

}  // namespace cudarelu::ops

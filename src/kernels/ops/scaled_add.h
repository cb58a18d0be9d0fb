#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct ScaledAdd {
  static constexpr OpSpec spec{
      .signature = "scaled_add(a: T[*], b: T[*], *, alpha: float = 2.0) -> c: T[*]",
      .summary = "alpha * a + b, elementwise.",
      .dtypes = floating_types,
      .in_place = "c = a",
      .gradient = "a = scale(grad_c, alpha); b = grad_c",
      .definition = R"(factor_f = Constant<value_float: float = @alpha>()
                       factor = CastLike(factor_f, a)
                       scaled = Mul(factor, a)
                       c = Add(scaled, b))",
  };
  template <class T>
  CUDARELU_FN T operator()(T a, T b, T alpha) const {
    return alpha * a + b;
  }
};

}  // namespace cudarelu::ops

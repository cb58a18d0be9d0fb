#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct Mul {
  static constexpr OpSpec spec{
      .signature = "mul(a: T[*], b: T[*]) -> c: T[*]",
      .summary = "a * b, elementwise.",
      .dtypes = floating_types,
      .in_place = "c = a",
      .gradient = "a = mul(grad_c, b); b = mul(grad_c, a)",
      .definition = "c = Mul(a, b)",
  };
  template <class T>
  CUDARELU_FN T operator()(T a, T b) const {
    return a * b;
  }
};

}  // namespace cudarelu::ops

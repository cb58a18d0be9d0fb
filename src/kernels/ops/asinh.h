#pragma once

#include "cudarelu/elementwise.h"
#include "cudarelu/transcendental.h"

namespace cudarelu::ops {

struct Asinh {
  static constexpr OpSpec spec{
      .signature = "asinh(x: T[*]) -> y: T[*]",
      .summary = "The inverse hyperbolic sine, elementwise.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = asinh_backward(grad_y, x)",
      .definition = "y = Asinh(x)",
  };
  static constexpr ArithmeticIntensity intensity = ArithmeticIntensity::high;
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    return math::asinh(x);
  }
#ifdef __CUDACC__
  static __device__ float for_halves(float x) { return math::asinh_for_halves(x); }
#endif
};

}  // namespace cudarelu::ops

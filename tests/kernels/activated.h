// The activations of matrix products, in float64.
#pragma once

#include <array>
#include <cmath>

#include "cudarelu/gemm.h"

namespace cudarelu::testing {

inline constexpr std::array activations{Activation::none, Activation::relu, Activation::gelu_erf,
                                        Activation::gelu_tanh, Activation::silu};

inline double activated(double x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::gelu_erf:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return x / (1 + std::exp(-std::sqrt(8 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return NAN;
}

}  // namespace cudarelu::testing

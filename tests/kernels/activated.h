// What follows a matrix product, in float64: the activation and the other matrix.
#pragma once

#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "cudarelu/gemm.h"

namespace cudarelu::testing {

inline constexpr std::array activations{Activation::none, Activation::relu, Activation::gelu_erf,
                                        Activation::gelu_tanh, Activation::silu};

inline constexpr std::string_view name_of(Activation activation) {
  constexpr std::array<std::string_view, activations.size()> names{"none", "relu", "gelu_erf",
                                                                   "gelu_tanh", "silu"};
  return names[static_cast<std::size_t>(activation)];
}

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

/// Ways to combine a product with another matrix; nullopt: there is none.
inline constexpr std::array<std::optional<Combine>, 3> combinations{std::nullopt, Combine::add,
                                                                    Combine::multiply};

inline constexpr std::string_view name_of(Combine combine) {
  return combine == Combine::add ? "add" : "multiply";
}

inline double combined(double x, std::optional<Combine> combine, double other) {
  if (!combine) return x;
  return *combine == Combine::add ? x + other : x * other;
}

}  // namespace cudarelu::testing

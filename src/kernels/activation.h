// What follows a matrix product, element by element: the activation and the other matrix.
#pragma once

#include <type_traits>

#include "cudarelu/activation_functions.h"
#include "cudarelu/gemm.h"

namespace cudarelu {

/// Calls use(constant) with the activation as a std::integral_constant, and returns its result.
template <class Use>
constexpr auto visit_activation(Activation activation, const Use& use) {
  using enum Activation;
  switch (activation) {
    case none:
      break;
    case relu:
      return use(std::integral_constant<Activation, relu>());
    case gelu_erf:
      return use(std::integral_constant<Activation, gelu_erf>());
    case gelu_tanh:
      return use(std::integral_constant<Activation, gelu_tanh>());
    case silu:
      return use(std::integral_constant<Activation, silu>());
  }
  return use(std::integral_constant<Activation, none>());
}

/// The activation of x; ReLU and GELU are as the ops relu and gelu compute them.
template <Activation activation, class C>
CUDARELU_FN C activated(C x) {
  if constexpr (activation == Activation::relu) return relu(x);
  if constexpr (activation == Activation::gelu_erf) return gelu::by_erf(x);
  if constexpr (activation == Activation::gelu_tanh) return gelu::by_tanh(x);
  if constexpr (activation == Activation::silu) return silu(x);
  return x;
}

/// x plus or times an element of the other matrix.
template <class C>
CUDARELU_FN C combined(Combine combine, C x, C other) {
  return combine == Combine::add ? x + other : x * other;
}

#ifdef __CUDACC__
/// The activation by the fast functions, for a result of type T.
template <Activation activation, class T>
__device__ __forceinline__ float activated_fast(float x) {
  if constexpr (activation == Activation::relu) return fast::relu(x);
  if constexpr (activation == Activation::gelu_erf) return fast::gelu_by_erf<T>(x);
  if constexpr (activation == Activation::gelu_tanh) return fast::gelu_by_tanh(x);
  if constexpr (activation == Activation::silu) return fast::silu<T>(x);
  return x;
}
#endif

}  // namespace cudarelu

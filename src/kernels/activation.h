// What follows a matrix product, element by element.
#pragma once

#include <cmath>

#include "cudarelu/gemm.h"
#include "transcendental.h"

namespace cudarelu {

/// Calls use(activate), where activate(x) is what the activation makes of x; not for one that
/// leaves it as it is.
template <class Use>
CUDARELU_FN void with_activation(Activation activation, const Use& use) {
  switch (activation) {
    case Activation::none:
      break;
    case Activation::relu:
      use([]<class C>(C x) { return x < C(0) ? C(0) : x; });
      break;
    case Activation::gelu_erf:
      use([]<class C>(C x) { return C(0.5) * x * (1 + std::erf(x * C(0.7071067811865475))); });
      break;
    case Activation::gelu_tanh:
      use([]<class C>(C x) {
        return C(0.5) * x * (1 + math::tanh(C(0.7978845608028654) * (x + C(0.044715) * x * x * x)));
      });
      break;
  }
}

}  // namespace cudarelu

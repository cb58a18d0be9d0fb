// What follows a matrix product, element by element.
#pragma once

#include "cudarelu/gemm.h"
#include "gelu_functions.h"

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
      use([](auto x) { return gelu::by_erf(x); });
      break;
    case Activation::gelu_tanh:
      use([](auto x) { return gelu::by_tanh(x); });
      break;
  }
}

}  // namespace cudarelu

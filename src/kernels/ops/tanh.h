#pragma once

#include "cudarelu/elementwise.h"
#include "cudarelu/pieces.h"

namespace cudarelu::ops {

struct Tanh {
  static constexpr OpSpec spec{
      .signature = "tanh(x: T[*]) -> y: T[*]",
      .summary = "The hyperbolic tangent, elementwise.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = tanh_backward(grad_y, y)",
      .definition = "y = Tanh(x)",
  };
  static constexpr Work work = Work::much;
  static constexpr const math::Pieces& pieces = math::tanh_pieces;
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    return math::tanh(x);
  }
};

}  // namespace cudarelu::ops

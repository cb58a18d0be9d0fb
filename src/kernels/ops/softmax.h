#pragma once

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct Softmax {
  static constexpr OpSpec spec{
      .signature = "softmax(x: T[*, c]) -> y: T[*, c]",
      .summary = "exp(x) / sum(exp(x)) along the last dimension; a row of only -inf gives NaN.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = "x = softmax_backward(grad_y, y)",
      .autocast = Autocast::float32,
      .definition = "y = Softmax<axis = -1>(x)",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

#pragma once

#include "cudarelu/activation_functions.h"
#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct Relu {
  static constexpr OpSpec spec{
      .signature = "relu(x: T[*]) -> y: T[*]",
      .summary = "max(x, 0), elementwise; NaN stays NaN.",
      .dtypes = real_types,
      .in_place = "y = x",
      .gradient = "x = relu_backward(grad_y, y)",
      .onnx_alias = {"custom_domain", "CustomRelu"},
      .definition = "y = Relu(x)",
  };
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    return relu(x);
  }
};

}  // namespace cudarelu::ops

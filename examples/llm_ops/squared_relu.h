// An op around a launcher that exists already, squared_relu_launcher(), for the dtype that it has.
#pragma once

#include "cudarelu/kernel.h"

namespace llm {

using namespace cudarelu;

struct SquaredRelu {
  static constexpr OpSpec spec{
      .signature = "squared_relu(x: T[*]) -> y: T[*]",
      .summary = "max(x, 0)^2, elementwise, in float32.",
      .dtypes = DTypeSet::of({DType::float32}),
      .in_place = "y = x",
      .gradient = "x = cudarelu::scale(cudarelu::mul(grad_y, cudarelu::relu(x)), 2)",
      .definition = "r = Relu(x)   y = Mul(r, r)",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace llm

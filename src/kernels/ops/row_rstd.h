#pragma once

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct RowRstd {
  static constexpr OpSpec spec{
      .signature = "row_rstd(x: T[*, c], *, eps: float = 1e-5 in [0, inf]) -> y: T[*, c]",
      .summary =
          "1 / sqrt(variance + eps) along the last dimension, written to every element of the row; "
          "the "
          "variance is divided by c.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient =
          "x = scale(mul(row_mean(grad_y), "
          "mul(mul(y, y), layer_norm(x, none, none, eps))), -1)",
      .autocast = Autocast::float32,
      .definition = R"(last = Constant<value_ints = [-1]>()
                       mean = ReduceMean<keepdims = 1>(x, last)
                       centred = Sub(x, mean)
                       squares = Mul(centred, centred)
                       variance = ReduceMean<keepdims = 1>(squares, last)
                       eps_f = Constant<value_float: float = @eps>()
                       eps_t = CastLike(eps_f, x)
                       sum = Add(variance, eps_t)
                       deviation = Sqrt(sum)
                       rstd = Reciprocal(deviation)
                       shape = Shape(x)
                       y = Expand(rstd, shape))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

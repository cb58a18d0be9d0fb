// RMSNorm, by rows, and the reciprocal of the root mean square, which its second derivative needs.
#pragma once

#include "cudarelu/kernel.h"

namespace llm {

using namespace cudarelu;

struct RmsNorm {
  static constexpr OpSpec spec{
      .signature =
          "rms_norm(x: T[*, c], weight: T[c]? = 1, *, eps: float = 1e-6 in [0, inf]) -> y: T[*, c]",
      .summary = "x / sqrt(mean(x^2) + eps) * weight, along the last dimension.",
      .dtypes = floating_types,
      .gradient = R"(x = rms_norm_backward(grad_y, x, weight, eps).grad_x;
                     weight = rms_norm_backward(grad_y, x, weight, eps).grad_weight)",
      .autocast = Autocast::float32,
      .definition = R"(last = Constant<value_ints = [-1]>()
                       squares = Mul(x, x)
                       mean = ReduceMean<keepdims = 1>(squares, last)
                       eps_f = Constant<value_float: float = @eps>()
                       eps_t = CastLike(eps_f, x)
                       sum = Add(mean, eps_t)
                       root = Sqrt(sum)
                       normal = Div(x, root)
                       y = Mul(normal, weight))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

struct RowRrms {
  static constexpr OpSpec spec{
      .signature = "row_rrms(x: T[*, c], *, eps: float = 1e-6 in [0, inf]) -> y: T[*, c]",
      .summary =
          "1 / sqrt(mean(x^2) + eps) along the last dimension, written to every element of the "
          "row.",
      .dtypes = floating_types,
      .in_place = "y = x",
      .gradient = R"(x = cudarelu::scale(
                         cudarelu::mul(cudarelu::row_mean(grad_y),
                                       cudarelu::mul(cudarelu::mul(y, y), rms_norm(x, none, eps))),
                         -1))",
      .autocast = Autocast::float32,
      .definition = R"(last = Constant<value_ints = [-1]>()
                       squares = Mul(x, x)
                       mean = ReduceMean<keepdims = 1>(squares, last)
                       eps_f = Constant<value_float: float = @eps>()
                       eps_t = CastLike(eps_f, x)
                       sum = Add(mean, eps_t)
                       root = Sqrt(sum)
                       rrms = Reciprocal(root)
                       shape = Shape(x)
                       y = Expand(rrms, shape))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace llm

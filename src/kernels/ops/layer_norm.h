#pragma once

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct LayerNorm {
  static constexpr OpSpec spec{
      .signature =
          "layer_norm(x: T[*, c], weight: T[c]? = 1, bias: T[c]? = 0, *, "
          "eps: float = 1e-5 in [0, inf]) -> y: T[*, c]",
      .summary =
          "(x - mean) / sqrt(variance + eps) * weight + bias, along the last dimension; the "
          "variance is divided by c.",
      .dtypes = floating_types,
      .gradient = R"(x = layer_norm_backward(grad_y, x, weight, eps).grad_x;
                     weight = layer_norm_backward(grad_y, x, weight, eps).grad_weight;
                     bias = layer_norm_backward(grad_y, x, weight, eps).grad_bias)",
      .autocast = Autocast::float32,
      .definition = "y = LayerNormalization<axis = -1, epsilon: float = @eps>(x, weight, bias)",
      .equivalent_forms = R"(last = Constant<value_ints = [-1]>()
                        mean = ReduceMean<keepdims = 1>(x, last)
                        centred = Sub(x, mean)
                        two_f = Constant<value_float = 2.0>()
                        two = CastLike(two_f, x)
                        squares = Pow(centred, two)
                        variance = ReduceMean<keepdims = 1>(squares, last)
                        eps_f = Constant<value_float: float = @eps>()
                        eps_t = CastLike(eps_f, x)
                        sum = Add(variance, eps_t)
                        deviation = Sqrt(sum)
                        normal = Div(centred, deviation)
                        scaled = Mul(normal, weight)
                        y = Add(scaled, bias))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

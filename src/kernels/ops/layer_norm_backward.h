#pragma once

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct LayerNormBackward {
  static constexpr OpSpec spec{
      .signature =
          "layer_norm_backward(grad_y: T[*, c], x: T[*, c], weight: T[c]? = 1, *, "
          "eps: float = 1e-5 in [0, inf]) "
          "-> (grad_x: T[*, c], grad_weight: T[c], grad_bias: T[c])",
      .summary = "The gradients of layer_norm.",
      .dtypes = floating_types,
      // The gradient in x: of <a, P(x) b> + <grad_grad_weight, grad_weight>, where P(x) is the
      // first output as a linear map of grad_y * weight.
      .gradient = R"(
          grad_y = add(mul(layer_norm_backward(grad_grad_x, x, none, eps).grad_x,
                           expand_rows(weight, x)),
                       layer_norm(x, grad_grad_weight, grad_grad_bias, eps));
          x = add(layer_norm_backward(mul(grad_y, expand_rows(grad_grad_weight, x)), x, none,
                                      eps).grad_x,
                  scale(mul(row_rstd(x, eps),
                            add(mul(layer_norm(x, none, none, eps),
                                    row_mean(mul(grad_grad_x, grad_x))),
                                add(mul(row_mean(mul(grad_y, layer_norm(x, weight, none, eps))),
                                        layer_norm_backward(grad_grad_x, x, none, eps).grad_x),
                                    mul(row_mean(mul(grad_grad_x,
                                                     layer_norm(x, none, none, eps))),
                                        grad_x)))), -1));
          weight = sum_rows(mul(grad_y, layer_norm_backward(grad_grad_x, x, none, eps).grad_x)))",
      .autocast = Autocast::float32,
      .definition = R"(
          last = Constant<value_ints = [-1]>()
          mean = ReduceMean<keepdims = 1>(x, last)
          centred = Sub(x, mean)
          squares = Mul(centred, centred)
          variance = ReduceMean<keepdims = 1>(squares, last)
          eps_f = Constant<value_float: float = @eps>()
          eps_t = CastLike(eps_f, x)
          sum = Add(variance, eps_t)
          deviation = Sqrt(sum)
          normal = Div(centred, deviation)
          scaled = Mul(grad_y, weight)
          scaled_mean = ReduceMean<keepdims = 1>(scaled, last)
          scaled_centred = Sub(scaled, scaled_mean)
          products = Mul(scaled, normal)
          slope = ReduceMean<keepdims = 1>(products, last)
          along = Mul(normal, slope)
          across = Sub(scaled_centred, along)
          grad_x = Div(across, deviation)
          weight_terms = Mul(grad_y, normal)
          shape = Shape(x)
          rank = Size(shape)
          zero = Constant<value_int = 0>()
          one = Constant<value_int = 1>()
          last_axis = Sub(rank, one)
          axes = Range(zero, last_axis, one)
          grad_weight = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(weight_terms, axes)
          grad_bias = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(grad_y, axes))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

// The gradients of rms_norm.
#pragma once

#include "cudarelu/kernel.h"

namespace llm {

using namespace cudarelu;

struct RmsNormBackward {
  static constexpr OpSpec spec{
      .signature =
          "rms_norm_backward(grad_y: T[*, c], x: T[*, c], weight: T[c]? = 1, *, "
          "eps: float = 1e-6 in [0, inf]) -> (grad_x: T[*, c], grad_weight: T[c])",
      .summary = "The gradients of rms_norm.",
      .dtypes = floating_types,
      // The gradient in x: of <a, P(x) b> + <grad_grad_weight, grad_weight>, where P(x) is the
      // first output as a linear map of grad_y * weight, and also the derivative of rms_norm(x).
      .gradient = R"(
          grad_y = cudarelu::add(
              cudarelu::mul(rms_norm_backward(grad_grad_x, x, none, eps).grad_x,
                            cudarelu::expand_rows(weight, x)),
              rms_norm(x, grad_grad_weight, eps));
          x = cudarelu::add(
              rms_norm_backward(cudarelu::mul(grad_y, cudarelu::expand_rows(grad_grad_weight, x)),
                                x, none, eps).grad_x,
              cudarelu::scale(cudarelu::mul(
                  row_rrms(x, eps),
                  cudarelu::add(
                      cudarelu::mul(rms_norm(x, none, eps),
                                    cudarelu::row_mean(cudarelu::mul(grad_grad_x, grad_x))),
                      cudarelu::add(
                          cudarelu::mul(
                              cudarelu::row_mean(cudarelu::mul(grad_y, rms_norm(x, weight, eps))),
                              rms_norm_backward(grad_grad_x, x, none, eps).grad_x),
                          cudarelu::mul(
                              cudarelu::row_mean(
                                  cudarelu::mul(grad_grad_x, rms_norm(x, none, eps))),
                              grad_x)))), -1));
          weight = cudarelu::sum_rows(
              cudarelu::mul(grad_y, rms_norm_backward(grad_grad_x, x, none, eps).grad_x)))",
      .autocast = Autocast::float32,
      .definition = R"(last = Constant<value_ints = [-1]>()
                       squares = Mul(x, x)
                       mean = ReduceMean<keepdims = 1>(squares, last)
                       eps_f = Constant<value_float: float = @eps>()
                       eps_t = CastLike(eps_f, x)
                       sum = Add(mean, eps_t)
                       root = Sqrt(sum)
                       normal = Div(x, root)
                       scaled = Mul(grad_y, weight)
                       products = Mul(scaled, normal)
                       slope = ReduceMean<keepdims = 1>(products, last)
                       along = Mul(normal, slope)
                       across = Sub(scaled, along)
                       grad_x = Div(across, root)
                       weight_terms = Mul(grad_y, normal)
                       shape = Shape(x)
                       rank = Size(shape)
                       zero = Constant<value_int = 0>()
                       one = Constant<value_int = 1>()
                       last_axis = Sub(rank, one)
                       axes = Range(zero, last_axis, one)
                       grad_weight = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(weight_terms, axes))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace llm

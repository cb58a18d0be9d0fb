// The gradients of rotary in cos and sin.
#pragma once

#include "rotary.h"

namespace llm {

struct RotaryAnglesBackward {
  static constexpr OpSpec spec{
      .signature =
          "rotary_angles_backward(grad_y: T[*, s, d], x: T[*, s, d], cos: T[s, h divides d], *, "
          "layout: halves | pairs = halves) -> (grad_cos: T[s, h], grad_sin: T[s, h])",
      .summary = "The gradients of rotary in cos and sin. Of cos, it uses the shape.",
      .dtypes = floating_types,
      // rotary is linear in x, and in cos and sin: both derivatives of <grad_y, rotary(x, ...)>.
      .gradient = R"(
          grad_y = rotary(x, grad_grad_cos, grad_grad_sin, layout);
          x = rotary(grad_y, grad_grad_cos, cudarelu::scale(grad_grad_sin, -1), layout))",
      // Elements first[i] and second[i] of a vector are its pair i.
      .definition = R"(zero = Constant<value_int = 0>()
                       one = Constant<value_int = 1>()
                       two = Constant<value_int = 2>()
                       label = Constant<value_int: int = @layout>()
                       is_pairs = Equal(label, one)
                       h_shape = Shape<start = -1>(cos)
                       h = Squeeze(h_shape)
                       i = Range(zero, h, one)
                       even = Mul(i, two)
                       odd = Add(even, one)
                       opposite = Add(i, h)
                       first = Where(is_pairs, even, i)
                       second = Where(is_pairs, odd, opposite)
                       a = Gather<axis = -1>(x, first)
                       b = Gather<axis = -1>(x, second)
                       grad_a = Gather<axis = -1>(grad_y, first)
                       grad_b = Gather<axis = -1>(grad_y, second)
                       a_cos = Mul(grad_a, a)
                       b_cos = Mul(grad_b, b)
                       cos_terms = Add(a_cos, b_cos)
                       b_sin = Mul(grad_b, a)
                       a_sin = Mul(grad_a, b)
                       sin_terms = Sub(b_sin, a_sin)
                       shape = Shape(x)
                       rank = Size(shape)
                       last = Sub(rank, two)
                       axes = Range(zero, last, one)
                       grad_cos = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(cos_terms, axes)
                       grad_sin = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(sin_terms, axes))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace llm

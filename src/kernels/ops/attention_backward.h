#pragma once

#include "cudarelu/kernel.h"
#include "ops/attention/second_derivative.h"

namespace cudarelu::ops {

struct AttentionBackward {
  static constexpr OpSpec spec{
      .signature =
          "attention_backward(grad_y: T[*, h, s, e], q: T[*, h, s, d], "
          "k: T[*, g divides h, t, d], v: T[*, g, t, e], y: T[*, h, s, e], lse: f32[*, h, s], "
          "grad_lse: f32[*, h, s]? = 0, attn_mask: broadcast T | bool[*, h, s, t]? = 0, *, "
          "is_causal: bool = false, "
          "scale: float?) "
          "-> (grad_q: T[*, h, s, d], grad_k: T[*, g, t, d], grad_v: T[*, g, t, e])",
      .summary =
          "The gradients of attention_with_lse with respect to q, k and v, from its outputs y and "
          "lse and their gradients. In float64, the digits that lse has lost in float32 are "
          "computed again if it is the lse of these keys.",
      .dtypes = floating_types,
      .gradient = attention::calls_of_second_derivative<attention::arguments_for_inputs>,
      .autocast = Autocast::lower,
      .strided = true,
      .definition =
          joined<attention::scores_text, attention::gradients_text, attention::inputs_text>,
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

#pragma once

#include "cudarelu/kernel.h"
#include "ops/attention/second_derivative.h"

namespace cudarelu::ops {

struct AttentionSecondDerivative {
  static constexpr OpSpec spec{
      .signature =
          "attention_second_derivative(grad_y: T[*, h, s, e], q: T[*, h, s, d], "
          "k: T[*, g divides h, t, d], v: T[*, g, t, e], y: T[*, h, s, e], lse: f32[*, h, s], "
          "grad_lse: f32[*, h, s]? = 0, grad_grad_q: T[*, h, s, d]? = 0, "
          "grad_grad_k: T[*, g, t, d]? = 0, grad_grad_v: T[*, g, t, e]? = 0, "
          "grad_grad_mask: T[*, h, s, t]? = 0, attn_mask: broadcast T | bool[*, h, s, t]? = 0, *, "
          "is_causal: bool = false, "
          "scale: float?) "
          "-> (of_grad_y: T[*, h, s, e], of_q: T[*, h, s, d], of_k: T[*, g, t, d], "
          "of_v: T[*, g, t, e], of_y: T[*, h, s, e], of_lse: f32[*, h, s], "
          "of_grad_lse: f32[*, h, s])",
      .summary =
          "The gradients of attention_backward and attention_mask_backward with respect to their "
          "inputs, from those of grad_q, grad_k, grad_v and grad_mask. All inputs, including y and "
          "lse, are independent variables.",
      .dtypes = floating_types,
      .autocast = Autocast::lower,
      .definition = joined<attention::scores_text, attention::gradients_text,
                           attention::second_text, attention::second_inputs_text>,
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

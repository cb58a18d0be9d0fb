#pragma once

#include "cudarelu/kernel.h"
#include "ops/attention/second_derivative.h"

namespace cudarelu::ops {

struct AttentionMaskBackward {
  static constexpr OpSpec spec{
      .signature =
          "attention_mask_backward(grad_y: T[*, h, s, e], q: T[*, h, s, d], "
          "k: T[*, g divides h, t, d], v: T[*, g, t, e], y: T[*, h, s, e], lse: f32[*, h, s], "
          "grad_lse: f32[*, h, s]? = 0, attn_mask: broadcast T | bool[*, h, s, t]? = 0, *, "
          "is_causal: bool = false, "
          "scale: float?) -> grad_mask: T[*, h, s, t]",
      .summary = "The gradient of attention_with_lse with respect to a mask of shape [*, h, s, t].",
      .dtypes = floating_types,
      .gradient = attention::calls_of_second_derivative<attention::arguments_for_mask>,
      .autocast = Autocast::lower,
      .strided = true,
      .definition = joined<attention::scores_text, attention::gradients_text, attention::mask_text>,
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

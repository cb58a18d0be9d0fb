#pragma once

#include "cudarelu/kernel.h"
#include "ops/attention/scores.h"

namespace cudarelu::ops {

struct AttentionWithLse {
  static constexpr OpSpec spec{
      .signature =
          "attention_with_lse(q: T[*, h, s, d], k: T[*, g divides h, t, d], v: T[*, g, t, e], "
          "attn_mask: broadcast T | bool[*, h, s, t]? = 0, *, is_causal: bool = false, "
          "scale: float?) -> (y: T[*, h, s, e], lse: f32[*, h, s])",
      .summary =
          "attention, and for each query the logarithm of the sum of the exponentials of its "
          "scores, with which the results for parts of the keys can be combined.",
      .dtypes = floating_types,
      .gradient = R"(q = attention_backward(grad_y, q, k, v, y, lse, grad_lse, attn_mask, is_causal,
                                             scale).grad_q;
                     k = attention_backward(grad_y, q, k, v, y, lse, grad_lse, attn_mask, is_causal,
                                             scale).grad_k;
                     v = attention_backward(grad_y, q, k, v, y, lse, grad_lse, attn_mask, is_causal,
                                             scale).grad_v;
                     attn_mask = attention_mask_backward(grad_y, q, k, v, y, lse, grad_lse,
                                                         attn_mask, is_causal, scale))",
      .autocast = Autocast::lower,
      .strided = true,
      .definition = joined<attention::scores_text, attention::outputs_text, attention::lse_text>,
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

#pragma once

#include "cudarelu/kernel.h"
#include "ops/attention/varlen.h"

namespace cudarelu::ops {

struct AttentionVarlenWithLse {
  static constexpr OpSpec spec{
      .signature =
          "attention_varlen_with_lse(q: T[n, h, d], k: T[m, g divides h, d], v: T[m, g, e], "
          "q_offsets: offsets(n)[b], k_offsets: offsets(m)[b]? = q_offsets, *, "
          "is_causal: bool = false, scale: float?) -> (y: T[n, h, e], lse: f32[n, h])",
      .summary =
          "attention_varlen, and for each query the logarithm of the sum of the exponentials of "
          "its "
          "scores, which is -inf without keys.",
      .dtypes = floating_types,
      .gradient = R"(q = attention_varlen_backward(grad_y, q, k, v, y, lse, q_offsets, grad_lse,
                                                   k_offsets, is_causal, scale).grad_q;
                     k = attention_varlen_backward(grad_y, q, k, v, y, lse, q_offsets, grad_lse,
                                                   k_offsets, is_causal, scale).grad_k;
                     v = attention_varlen_backward(grad_y, q, k, v, y, lse, q_offsets, grad_lse,
                                                   k_offsets, is_causal, scale).grad_v)",
      .autocast = Autocast::lower,
      .strided = true,
      .definition = joined<attention::varlen_scores_text, attention::varlen_outputs_text,
                           attention::varlen_lse_text>,
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

#pragma once

#include "cudarelu/kernel.h"
#include "ops/attention/varlen.h"

namespace cudarelu::ops {

struct AttentionVarlenBackward {
  static constexpr OpSpec spec{
      .signature =
          "attention_varlen_backward(grad_y: T[n, h, e], q: T[n, h, d], k: T[m, g divides h, d], "
          "v: T[m, g, e], y: T[n, h, e], lse: f32[n, h], q_offsets: offsets(n)[b], "
          "grad_lse: f32[n, h]? = 0, k_offsets: offsets(m)[b]? = q_offsets, *, "
          "is_causal: bool = false, scale: float?) "
          "-> (grad_q: T[n, h, d], grad_k: T[m, g, d], grad_v: T[m, g, e])",
      .summary =
          "The gradients of attention_varlen_with_lse with respect to q, k and v, from its outputs "
          "y "
          "and lse and their gradients. In float64, the digits that lse has lost in float32 are "
          "computed again if it is the lse of these keys. Rows past the last offset have zeros.",
      .dtypes = floating_types,
      .autocast = Autocast::lower,
      .strided = true,
      .definition = joined<attention::varlen_scores_text, attention::varlen_gradients_text>,
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

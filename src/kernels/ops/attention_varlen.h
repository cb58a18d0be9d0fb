#pragma once

#include "cudarelu/kernel.h"
#include "ops/attention/varlen.h"

namespace cudarelu::ops {

/// As flash_attn_varlen_func, whose cu_seqlens are a 0 and the offsets here.
struct AttentionVarlen {
  static constexpr OpSpec spec{
      .signature =
          "attention_varlen(q: T[n, h, d], k: T[m, g divides h, d], v: T[m, g, e], "
          "q_offsets: offsets(n)[b], k_offsets: offsets(m)[b]? = q_offsets, *, "
          "is_causal: bool = false, scale: float?) -> y: T[n, h, e]",
      .summary =
          "attention for each of several packed sequences: the offsets are the ends of their rows "
          "in q, and in k and v. is_causal counts from the first rows of a sequence. Other "
          "sequences have no effect, whatever their values are. A query without keys gives zeros, "
          "and so does one past the last offset, which belongs to no sequence.",
      .dtypes = floating_types,
      .gradient = "as attention_varlen_with_lse",
      .autocast = Autocast::lower,
      .strided = true,
      .definition = joined<attention::varlen_scores_text, attention::varlen_outputs_text>,
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

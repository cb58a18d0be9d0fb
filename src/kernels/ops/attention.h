#pragma once

#include "cudarelu/kernel.h"
#include "ops/attention/scores.h"

namespace cudarelu::ops {

/// The arguments and their meaning are those of torch.nn.functional.scaled_dot_product_attention.
struct Attention {
  static constexpr OpSpec spec{
      .signature =
          "attention(q: T[*, h, s, d], k: T[*, g divides h, t, d], v: T[*, g, t, e], "
          "attn_mask: broadcast T | bool[*, h, s, t]? = 0, *, is_causal: bool = false, "
          "scale: float?) -> y: T[*, h, s, e]",
      .summary =
          "softmax(q k^T scale + attn_mask) v for each head; scale is 1/sqrt(d) if it is none. "
          "h / g neighbouring heads of q share one of k and v. A key is hidden from a query where "
          "the mask is false or -inf, and, if is_causal, where its number is higher. A query "
          "without keys gives zeros. The result for a hidden value that is not finite is "
          "undefined: "
          "0 times it is NaN, unless a kernel leaves it out.",
      .dtypes = floating_types,
      .gradient = "as attention_with_lse",
      .autocast = Autocast::lower,
      .strided = true,
      .definition = joined<attention::scores_text, attention::outputs_text>,
      .written_out = R"(y = Attention<is_causal: int = @is_causal, scale: float = @scale>
                            (q, k, v, attn_mask)

                        k_turned = Transpose<perm = [0, 1, 3, 2]>(k)
                        products = MatMul(q, k_turned)
                        scale_f = Constant<value_float: float = @scale>()
                        scale_t = CastLike(scale_f, q)
                        scaled = Mul(products, scale_t)
                        scores = Add(scaled, attn_mask)
                        weights = Softmax<axis = -1>(scores)
                        y = MatMul(weights, v))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace cudarelu::ops

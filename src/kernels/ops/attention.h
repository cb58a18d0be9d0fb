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
          "softmax(q k^T scale + attn_mask) v for each head; scale is 1/sqrt(d) if it is None. "
          "h / g consecutive heads of q share one head of k and v (grouped-query attention). A key "
          "is masked for a query where the mask is false or -inf, or, if is_causal, where the "
          "index of the key is greater than that of the query. If all keys of a query are masked, "
          "the result is 0. If v is not finite at a masked key, the result is undefined: kernels "
          "may multiply v by 0, which gives NaN.",
      .dtypes = floating_types,
      .gradient = "as attention_with_lse",
      .autocast = Autocast::lower,
      .strided = true,
      .definition = joined<attention::scores_text, attention::outputs_text>,
      .equivalent_forms = R"(y = Attention<is_causal: int = @is_causal, scale: float = @scale>
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

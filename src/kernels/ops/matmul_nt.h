#pragma once

#include "gemm/op.h"

namespace cudarelu::ops {

struct MatmulNt {
  static constexpr OpSpec spec{
      .signature = "matmul_nt(a: T[*, m, k], b: T[*, n, k]) -> c: T[*, m, n]",
      .summary = "a b^T, for each pair of matrices.",
      .dtypes = floating_types,
      .gradient = "a = matmul(grad_c, b); b = matmul_tn(grad_c, a)",
      .autocast = Autocast::lower,
      .definition = R"(c = Einsum<equation = "...ik,...jk->...ij">(a, b))",
  };
  static Gemm gemm(const Call& call) { return batched_product(call, false, true); }
};

}  // namespace cudarelu::ops

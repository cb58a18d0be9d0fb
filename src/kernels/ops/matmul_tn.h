#pragma once

#include "gemm/op.h"

namespace cudarelu::ops {

struct MatmulTn {
  static constexpr OpSpec spec{
      .signature = "matmul_tn(a: T[*, k, m], b: T[*, k, n]) -> c: T[*, m, n]",
      .summary = "a^T b, for each pair of matrices.",
      .dtypes = floating_types,
      .gradient = "a = matmul_nt(b, grad_c); b = matmul(a, grad_c)",
      .autocast = Autocast::lower,
      .definition = R"(c = Einsum<equation = "...ki,...kj->...ij">(a, b))",
  };
  static Gemm gemm(const Call& call) { return batched_product(call, true, false); }
};

}  // namespace cudarelu::ops

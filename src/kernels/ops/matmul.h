#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

struct Matmul {
  static constexpr OpSpec spec{
      .signature = "matmul(a: T[*, m, k], b: T[*, k, n]) -> c: T[*, m, n]",
      .summary = "a b, for each pair of matrices.",
      .dtypes = floating_types,
      .gradient = "a = matmul_nt(grad_c, b); b = matmul_tn(a, grad_c)",
      .autocast = Autocast::lower,
      .definition = "c = MatMul(a, b)",
  };
  static Gemm gemm(const Call& call) { return batched_product(call, false, false); }
};

}  // namespace cudarelu::ops

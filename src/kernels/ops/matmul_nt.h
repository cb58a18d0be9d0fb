#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

struct MatmulNt {
  static constexpr OpSpec spec{
      .signature = "matmul_nt(a: T[*, m, k], b: T[*, n, k]) -> c: T[*, m, n]",
      .summary = "a b^T, for each pair of matrices.",
      .dtypes = floating_types,
      .gradient = "a = matmul(grad_c, b); b = matmul_tn(grad_c, a)",
      .autocast = Autocast::lower,
      .definition = R"(unit = Constant<value_ints = [1]>()
                       leading = Shape<end = -2>(b)
                       counted = Concat<axis = 0>(unit, leading)
                       batch = ReduceProd<keepdims = 1>(counted)
                       matrix = Shape<start = -2>(b)
                       flat_shape = Concat<axis = 0>(batch, matrix)
                       flat = Reshape<allowzero = 1>(b, flat_shape)
                       flat_turned = Transpose<perm = [0, 2, 1]>(flat)
                       matrix_turned = Shape<start = -2>(flat_turned)
                       turned_shape = Concat<axis = 0>(leading, matrix_turned)
                       turned = Reshape<allowzero = 1>(flat_turned, turned_shape)
                       c = MatMul(a, turned))",
  };
  static Gemm gemm(const Call& call) { return batched_product(call, false, true); }
};

}  // namespace cudarelu::ops

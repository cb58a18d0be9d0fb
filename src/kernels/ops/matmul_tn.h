#pragma once

#include "cudarelu/product.h"

namespace cudarelu::ops {

struct MatmulTn {
  static constexpr OpSpec spec{
      .signature = "matmul_tn(a: T[*, k, m], b: T[*, k, n]) -> c: T[*, m, n]",
      .summary = "a^T b, for each pair of matrices.",
      .dtypes = floating_types,
      .gradient = "a = matmul_nt(b, grad_c); b = matmul(a, grad_c)",
      .autocast = Autocast::lower,
      .definition = R"(unit = Constant<value_ints = [1]>()
                       leading = Shape<end = -2>(a)
                       counted = Concat<axis = 0>(unit, leading)
                       batch = ReduceProd<keepdims = 1>(counted)
                       matrix = Shape<start = -2>(a)
                       flat_shape = Concat<axis = 0>(batch, matrix)
                       flat = Reshape<allowzero = 1>(a, flat_shape)
                       flat_turned = Transpose<perm = [0, 2, 1]>(flat)
                       matrix_turned = Shape<start = -2>(flat_turned)
                       turned_shape = Concat<axis = 0>(leading, matrix_turned)
                       turned = Reshape<allowzero = 1>(flat_turned, turned_shape)
                       c = MatMul(turned, b))",
  };
  static Gemm gemm(const Call& call) { return batched_product(call, true, false); }
};

}  // namespace cudarelu::ops

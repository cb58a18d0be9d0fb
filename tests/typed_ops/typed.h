// Ops whose tensors have dtypes of their own.
#pragma once
#include "cudarelu/kernel.h"
namespace typed {
using cudarelu::DType;
using cudarelu::DTypeSet;

struct Greater {
  static constexpr cudarelu::OpSpec spec{
      .signature = "greater(x: T[*, c], limit: T[c]) -> (above: bool[*, c], sign: i8[*, c])",
      .summary = "Where x is greater than the limit, and the sign of x.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(above = Greater(x, limit)
                       sign_t = Sign(x)
                       sign = Cast<to = 3>(sign_t))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Scaled {
  static constexpr cudarelu::OpSpec spec{
      .signature = "scaled(x: T[*, c], weight: T | f32[c]) -> y: x",
      .summary = "x times a weight of the same dtype, or of float32.",
      .dtypes = cudarelu::floating_types,
      .gradient = "x = scaled(grad_y, weight)",
      .definition = R"(weight_t = CastLike(weight, x)
                       y = Mul(x, weight_t))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Int8Matmul {
  static constexpr cudarelu::OpSpec spec{
      .signature =
          "int8_matmul(a: i8[m, k], b: i8[n, k], scale: f32[m], *, "
          "to: f16 | bf16 | f32 = bf16) -> y: to[m, n]",
      .summary = "The product of two matrices of int8, times a scale for each row.",
      .definition = R"(a_f = CastLike(a, scale)
                       b_f = CastLike(b, scale)
                       b_t = Transpose<perm = [1, 0]>(b_f)
                       product = MatMul(a_f, b_t)
                       last = Constant<value_ints = [1]>()
                       column = Unsqueeze(scale, last)
                       y_f = Mul(product, column)
                       y = Cast<to: int = @to>(y_f))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Gathered {
  static constexpr cudarelu::OpSpec spec{
      .signature =
          "gathered(x: T[n, c], index: U[m], weight: V[m]) -> y: V[m, c] "
          "where U: i32 | i64, V: T | f32",
      .summary = "Rows of x, of indices modulo n, times weights, in the dtype of the weights.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(shape = Shape<end = 1>(x)
                       n = CastLike(shape, index)
                       at = Mod(index, n)
                       rows = Gather(x, at)
                       rows_v = CastLike(rows, weight)
                       last = Constant<value_ints = [1]>()
                       column = Unsqueeze(weight, last)
                       y = Mul(rows_v, column))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Twice {
  static constexpr cudarelu::OpSpec spec{
      .signature = "twice(x: f16 | f32 | u8[*]) -> y: x",
      .summary = "2 x.",
      .definition = "y = Add(x, x)",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
}  // namespace typed

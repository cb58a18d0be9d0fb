// A matrix product with what follows it: the one form in which the ops ask for it.
#pragma once

#include <cstdint>

#include "cudarelu/dtype.h"

namespace cudarelu {

enum class Activation : std::uint8_t { none, relu, gelu_erf, gelu_tanh };

/// d[i] = activation(a[i] b[i] + bias) for each i of the batch: a [m, k], b [k, n], d [m, n], dense
/// and row-major; the bias, [n], is added to each row. All of one floating dtype; float16 and
/// bfloat16 are added up in float32, and rounded once, or before the activation too where the
/// engine at hand has no such epilogue.
struct Gemm {
  DType dtype;
  std::int64_t batch;
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  const void* a;
  const void* b;
  void* d;
  bool a_transposed = false;   // a lies in memory as [k, m]
  bool b_transposed = false;   // b lies in memory as [n, k], as the weight of a linear layer does
  bool allow_tf32 = false;     // on CUDA the factors of float32 may be rounded to TF32
  const void* bias = nullptr;  // or nullptr
  Activation activation = Activation::none;
  void* sum = nullptr;  // [m, n]: where a b + bias is kept too; or nullptr
};

}  // namespace cudarelu

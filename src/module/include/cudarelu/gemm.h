// A matrix product with its epilogue, as all ops request it.
#pragma once

#include <cstdint>

#include "cudarelu/detail/dtype.h"

namespace cudarelu {

enum class Activation : std::uint8_t { none, relu, gelu_erf, gelu_tanh, silu };

/// What is done with the other matrix of a product.
enum class Combine : std::uint8_t { add, multiply };

/// d[i] = activation(a[i] b[i] + bias), plus or times other[i], for each i of the batch: a [m, k],
/// b [k, n], d and other [m, n], dense and row-major; the bias, [n], is added to each row. All
/// tensors have one floating-point dtype. float16 and bfloat16 accumulate in float32 and are
/// rounded once; an engine without the activation or the other matrix in its epilogue rounds before
/// them, too.
struct Gemm {
  DType dtype;
  std::int64_t batch;
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  const void* a;
  const void* b;
  void* d;
  bool a_transposed = false;   // a is stored as [k, m]
  bool b_transposed = false;   // b is stored as [n, k], as the weight of a linear layer
  bool allow_tf32 = false;     // CUDA may round float32 factors to TF32
  const void* bias = nullptr;  // or nullptr
  Activation activation = Activation::none;
  void* sum = nullptr;          // [m, n], receives a b + bias; or nullptr
  const void* other = nullptr;  // or nullptr
  Combine combine = Combine::add;
};

}  // namespace cudarelu

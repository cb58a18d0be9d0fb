// For ops that are one matrix product with an epilogue. Such an op describes the product in
// `static Gemm gemm(const Call&)`, and needs no kernels of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cudarelu/call.h"
#include "cudarelu/op_spec.h"

namespace cudarelu {

/// The beginning of the definition of a linear layer with the inputs x [*, k], weight [n, k] and
/// bias [n], which may be absent: sum_matrix is x weight^T + bias as a matrix, y_shape the shape
/// [*, n].
inline constexpr std::string_view linear_text = R"(
  unit = Constant<value_ints = [1]>()
  leading = Shape<end = -1>(x)
  counted = Concat<axis = 0>(unit, leading)
  rows = ReduceProd<keepdims = 1>(counted)
  n = Shape<end = 1>(weight)
  k = Shape<start = 1>(weight)
  matrix_shape = Concat<axis = 0>(rows, k)
  y_shape = Concat<axis = 0>(leading, n)
  matrix = Reshape<allowzero = 1>(x, matrix_shape)
  sum_matrix = Gemm<transB = 1>(matrix, weight, bias))";

/// The product of all sizes of a tensor except the last `own`.
inline std::int64_t leading_size(const TensorView& tensor, std::size_t own) {
  std::int64_t product = 1;
  for (const std::int64_t dim : tensor.shape.first(tensor.shape.size() - own)) product *= dim;
  return product;
}

/// The products of two inputs [*, rows, columns], either of them transposed.
inline Gemm batched_product(const Call& call, bool a_transposed, bool b_transposed) {
  const TensorView& a = call.inputs[0];
  const TensorView& b = call.inputs[1];
  const auto a_shape = a.shape.last(2);
  const auto b_shape = b.shape.last(2);
  return {.dtype = a.dtype,
          .batch = leading_size(a, 2),
          .m = a_shape[a_transposed ? 1 : 0],
          .n = b_shape[b_transposed ? 0 : 1],
          .k = a_shape[a_transposed ? 0 : 1],
          .a = a.data,
          .b = b.data,
          .d = call.outputs[0].data,
          .a_transposed = a_transposed != a.transposed,
          .b_transposed = b_transposed != b.transposed};
}

/// The activation of an op with the one attribute `approximate: none | tanh`.
inline Activation gelu_of(const Call& call) {
  return call.integer(0) == 0 ? Activation::gelu_erf : Activation::gelu_tanh;
}

/// activation(x weight^T + bias) for the inputs x [*, k], weight [n, k] and bias [n], if present:
/// the first two inputs and that of the number `bias`.
inline Gemm linear_product(const Call& call, Activation activation = Activation::none,
                           std::size_t bias = 2) {
  const TensorView& x = call.inputs[0];
  const TensorView& weight = call.inputs[1];
  return {.dtype = x.dtype,
          .batch = 1,
          .m = leading_size(x, 1),
          .n = weight.shape[0],
          .k = weight.shape[1],
          .a = x.data,
          .b = weight.data,
          .d = call.outputs[0].data,
          .a_transposed = x.transposed,
          .b_transposed = !weight.transposed,
          .bias = call.inputs[bias].data,
          .activation = activation};
}

/// The same for the inputs x, weight, other [*, n] and bias, plus or times the other.
inline Gemm linear_product_with_other(const Call& call, Activation activation, Combine combine) {
  Gemm gemm = linear_product(call, activation, 3);
  gemm.other = call.inputs[2].data;
  gemm.combine = combine;
  return gemm;
}

}  // namespace cudarelu

// Conversion between the C++ types of a call and those of module.h, for both sides of the boundary.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cudarelu/call.h"
#include "cudarelu/module.h"

namespace cudarelu {

// The enumerations have the same values on both sides.
static_assert(static_cast<int>(DType::boolean) == CUDARELU_BOOL);
static_assert(static_cast<int>(Activation::silu) == CUDARELU_ACTIVATION_SILU);
static_assert(static_cast<int>(Combine::multiply) == CUDARELU_COMBINE_MULTIPLY);
static_assert(static_cast<int>(Status::Code::internal) == CUDARELU_INTERNAL);

// Tensors cross the boundary as they are: a copy of each would cost a small call a few per cent.
static_assert(sizeof(TensorView) == sizeof(cudarelu_tensor) &&
              sizeof(std::span<const std::int64_t>) == sizeof(void*) + sizeof(std::size_t));
static_assert(offsetof(TensorView, dtype) == offsetof(cudarelu_tensor, dtype) &&
              offsetof(TensorView, shape) == offsetof(cudarelu_tensor, shape) &&
              offsetof(TensorView, present) == offsetof(cudarelu_tensor, present) &&
              offsetof(TensorView, transposed) == offsetof(cudarelu_tensor, transposed));

inline const cudarelu_tensor* to_c(std::span<const TensorView> views) {
  return reinterpret_cast<const cudarelu_tensor*>(views.data());
}

inline std::span<const TensorView> from_c(const cudarelu_tensor* tensors, std::size_t count) {
  return {reinterpret_cast<const TensorView*>(tensors), count};
}

inline cudarelu_attribute to_c(const Attribute& attribute) {
  cudarelu_attribute result;
  const auto* const integer = std::get_if<std::int64_t>(&attribute);
  result.is_integer = integer != nullptr;
  if (integer != nullptr) {
    result.value.integer = *integer;
  } else {
    result.value.real = *std::get_if<double>(&attribute);
  }
  return result;
}

inline Attribute from_c(const cudarelu_attribute& attribute) {
  if (attribute.is_integer != 0) return attribute.value.integer;
  return attribute.value.real;
}

inline cudarelu_gemm to_c(const Gemm& gemm) {
  return {.size = sizeof(cudarelu_gemm),
          .batch = gemm.batch,
          .m = gemm.m,
          .n = gemm.n,
          .k = gemm.k,
          .a = gemm.a,
          .b = gemm.b,
          .d = gemm.d,
          .bias = gemm.bias,
          .sum = gemm.sum,
          .dtype = static_cast<std::uint32_t>(gemm.dtype),
          .flags = (gemm.a_transposed ? std::uint32_t{CUDARELU_A_TRANSPOSED} : 0) |
                   (gemm.b_transposed ? std::uint32_t{CUDARELU_B_TRANSPOSED} : 0),
          .activation = static_cast<std::uint32_t>(gemm.activation),
          .combine = static_cast<std::uint32_t>(gemm.combine),
          .other = gemm.other};
}

/// The least size of a cudarelu_gemm that has the other matrix.
inline constexpr std::size_t gemm_size_with_other =
    offsetof(cudarelu_gemm, other) + sizeof(cudarelu_gemm::other);

/// Whether the services of a host, or the engines, read the other matrix of a product.
template <class Lender>
bool reads_other(const Lender& lender) {
  constexpr std::size_t needed = offsetof(Lender, gemm_size) + sizeof(Lender::gemm_size);
  return lender.size >= needed && lender.gemm_size >= gemm_size_with_other;
}

inline Gemm from_c(const cudarelu_gemm& gemm) {
  const bool has_other = gemm.size >= gemm_size_with_other;
  return {.dtype = static_cast<DType>(gemm.dtype),
          .batch = gemm.batch,
          .m = gemm.m,
          .n = gemm.n,
          .k = gemm.k,
          .a = gemm.a,
          .b = gemm.b,
          .d = gemm.d,
          .a_transposed = (gemm.flags & CUDARELU_A_TRANSPOSED) != 0,
          .b_transposed = (gemm.flags & CUDARELU_B_TRANSPOSED) != 0,
          .bias = gemm.bias,
          .activation = static_cast<Activation>(gemm.activation),
          .sum = gemm.sum,
          .other = has_other ? gemm.other : nullptr,
          .combine = has_other ? static_cast<Combine>(gemm.combine) : Combine::add};
}

/// The error of a product with another matrix, for a host or engines that would ignore that.
inline Status too_old_for_other(std::string_view op) {
  return {Status::Code::unavailable,
          std::string(op) +
              ": this cudarelu is older than the op: it cannot combine a product with "
              "another matrix; update cudarelu"};
}

/// Writes a message, shortened if it is too long.
inline void write(std::string_view message, cudarelu_error& error) {
  const std::size_t size = std::min(message.size(), sizeof(error.message) - 1);
  error.message[message.copy(error.message, size)] = '\0';
}

/// Writes the message of a Status and returns its code.
inline cudarelu_code to_c(const Status& status, cudarelu_error& error) {
  if (status.ok()) [[likely]] {
    return CUDARELU_OK;
  }
  write(status.message(), error);
  return static_cast<cudarelu_code>(status.code());
}

inline Status from_c(cudarelu_code code, cudarelu_error& error) {
  if (code == CUDARELU_OK) [[likely]] {
    return {};
  }
  error.message[sizeof(error.message) - 1] = '\0';
  return {static_cast<Status::Code>(code), error.message};
}

}  // namespace cudarelu

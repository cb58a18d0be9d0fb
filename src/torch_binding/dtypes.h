// Conversion between element types of cudarelu and PyTorch.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <optional>

#include "cudarelu/dtype.h"

namespace cudarelu::binding {

inline std::optional<DType> dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return DType::float32;
    case c10::ScalarType::Double:
      return DType::float64;
    case c10::ScalarType::Half:
      return DType::float16;
    case c10::ScalarType::BFloat16:
      return DType::bfloat16;
    case c10::ScalarType::Char:
      return DType::int8;
    case c10::ScalarType::Byte:
      return DType::uint8;
    case c10::ScalarType::Int:
      return DType::int32;
    case c10::ScalarType::Long:
      return DType::int64;
    case c10::ScalarType::Bool:
      return DType::boolean;
    default:
      return std::nullopt;
  }
}

inline c10::ScalarType scalar_type_of(DType dtype) {
  constexpr std::array<c10::ScalarType, all_dtypes.size()> types{
      c10::ScalarType::Float,    c10::ScalarType::Double, c10::ScalarType::Half,
      c10::ScalarType::BFloat16, c10::ScalarType::Char,   c10::ScalarType::Byte,
      c10::ScalarType::Int,      c10::ScalarType::Long,   c10::ScalarType::Bool};
  return types[static_cast<std::size_t>(dtype)];
}

}  // namespace cudarelu::binding

// Conversion between element types of cudarelu and PyTorch.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "cudarelu/dtype_table.h"

namespace cudarelu::binding {

inline constexpr DTypeTable<c10::ScalarType> scalar_types{
    {c10::ScalarType::Float, c10::ScalarType::Double, c10::ScalarType::Half,
     c10::ScalarType::BFloat16, c10::ScalarType::Char, c10::ScalarType::Byte, c10::ScalarType::Int,
     c10::ScalarType::Long, c10::ScalarType::Bool}};

inline std::optional<DType> dtype_of(c10::ScalarType type) { return scalar_types.find(type); }

inline c10::ScalarType scalar_type_of(DType dtype) { return scalar_types[dtype]; }

}  // namespace cudarelu::binding

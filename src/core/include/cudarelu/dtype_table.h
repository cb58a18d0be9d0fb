// The element types of a host.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "cudarelu/detail/dtype.h"

namespace cudarelu {

/// What the host has for each dtype, such as its name or its number, in the order of DType.
template <class T>
struct DTypeTable {
  std::array<T, all_dtypes.size()> types;

  constexpr const T& operator[](DType dtype) const {
    return types[static_cast<std::size_t>(dtype)];
  }
  /// Nothing for an element type that is not a DType.
  constexpr std::optional<DType> find(const T& type) const {
    for (const DType dtype : all_dtypes) {
      if ((*this)[dtype] == type) return dtype;
    }
    return std::nullopt;
  }
};

}  // namespace cudarelu

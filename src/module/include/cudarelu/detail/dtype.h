// The element types that tensors can have.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace cudarelu {

enum class DType : std::uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  uint8,
  int32,
  int64,
  boolean,  // a byte, 0 or 1
};

inline constexpr std::array all_dtypes{DType::float32,  DType::float64, DType::float16,
                                       DType::bfloat16, DType::int8,    DType::uint8,
                                       DType::int32,    DType::int64,   DType::boolean};

namespace detail {
inline constexpr std::array<std::string_view, all_dtypes.size()> dtype_names{
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"};
inline constexpr std::array<std::size_t, all_dtypes.size()> dtype_sizes{4, 8, 2, 2, 1, 1, 4, 8, 1};
}  // namespace detail

constexpr std::string_view name_of(DType dtype) {
  return detail::dtype_names[static_cast<std::size_t>(dtype)];
}

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  return detail::dtype_sizes[static_cast<std::size_t>(dtype)];
}

/// A set of element types; can be a template argument.
struct DTypeSet {
  unsigned bits = 0;

  static constexpr DTypeSet of(std::initializer_list<DType> dtypes) {
    DTypeSet set;
    for (const DType dtype : dtypes) set.bits |= 1u << static_cast<unsigned>(dtype);
    return set;
  }
  constexpr bool operator==(const DTypeSet&) const = default;
  constexpr void insert(DType dtype) { bits |= 1u << static_cast<unsigned>(dtype); }
  constexpr std::size_t size() const { return static_cast<std::size_t>(std::popcount(bits)); }
  constexpr bool has_floating() const { return (bits & 0b1111u) != 0; }
  /// The first dtype of a set that is not empty.
  constexpr DType first() const { return static_cast<DType>(std::countr_zero(bits)); }
  constexpr bool contains(DType dtype) const {
    return (bits >> static_cast<unsigned>(dtype) & 1u) != 0;
  }
};

inline constexpr DTypeSet floating_types =
    DTypeSet::of({DType::float32, DType::float64, DType::float16, DType::bfloat16});
inline constexpr DTypeSet real_types =
    DTypeSet::of({DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int8,
                  DType::uint8, DType::int32, DType::int64});

}  // namespace cudarelu

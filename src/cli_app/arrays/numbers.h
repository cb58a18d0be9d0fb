// Access to the elements of tensors as numbers.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <variant>

#include "arrays/tensor.h"

namespace cudarelu::cli {

using Number = std::variant<double, std::int64_t, std::uint64_t, bool>;

Number element(const Tensor& tensor, std::int64_t index);

/// Sets an element to the value, rounded to its type, to nearest with ties to even.
void set_element(Tensor& tensor, std::int64_t index, double value);

/// Rounds the value to a floating-point type.
double rounded_to(const ElementType& type, double value);

/// Whether the whole text is a number, which it sets.
template <class T>
bool parse_all(const std::string& text, T& number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

}  // namespace cudarelu::cli

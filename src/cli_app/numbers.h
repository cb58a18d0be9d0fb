// Access to the elements of tensors as numbers.
#pragma once

#include <cstdint>
#include <variant>

#include "tensor.h"

namespace cudarelu::cli {

using Number = std::variant<double, std::int64_t, std::uint64_t, bool>;

Number element(const Tensor& tensor, std::int64_t index);

/// Sets an element to the value, rounded to its type, to nearest with ties to even.
void set_element(Tensor& tensor, std::int64_t index, double value);

/// Rounds the value to a floating-point type.
double rounded_to(const ElementType& type, double value);

}  // namespace cudarelu::cli

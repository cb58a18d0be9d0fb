// The elements of tensors as numbers.
#pragma once

#include <cstdint>
#include <variant>

#include "tensor.h"

namespace cudarelu::cli {

using Number = std::variant<double, std::int64_t, std::uint64_t, bool>;

Number element(const Tensor& tensor, std::int64_t index);

/// Writes the element, rounded to its type to the nearest, ties to even.
void set_element(Tensor& tensor, std::int64_t index, double value);

/// What the value is after rounding to the type.
double rounded_to(const ElementType& type, double value);

}  // namespace cudarelu::cli

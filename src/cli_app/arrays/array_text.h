// Formatting of arrays as text, as NumPy prints them.
#pragma once

#include <string>

#include "arrays/tensor.h"

namespace cudarelu::cli {

/// Returns the elements in brackets. Of more than 1,000 elements, only the first and last three of
/// each dimension are shown.
std::string array_text(const Tensor& tensor);

}  // namespace cudarelu::cli

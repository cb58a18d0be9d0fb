// Tensors as text, the way NumPy prints them.
#pragma once

#include <string>

#include "tensor.h"

namespace cudarelu::cli {

/// The elements in brackets; of more than 1,000 only the first and last three of each dimension.
std::string values_of(const Tensor& tensor);

}  // namespace cudarelu::cli

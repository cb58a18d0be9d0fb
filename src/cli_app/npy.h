// NumPy's .npy files: format versions 1 to 3, little-endian, in C or Fortran order.
#pragma once

#include <filesystem>

#include "tensor.h"

namespace cudarelu::cli {

/// Reads the file. Throws an Error that names it where it is missing, is no .npy file, is shorter
/// or longer than its header says, or holds elements that are not in element_types. V2, as NumPy
/// calls elements of two bytes that it does not know, is read as bfloat16.
Tensor read_npy(const std::filesystem::path& path);

/// Writes the file, whole or not at all; throws an Error where it cannot.
void write_npy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace cudarelu::cli

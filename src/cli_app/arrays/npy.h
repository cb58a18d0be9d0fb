// Reading and writing NumPy's .npy files: format versions 1 to 3, little-endian, C or Fortran
// order.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "arrays/tensor.h"

namespace cudarelu::cli {

/// Parses the content of a .npy file. NumPy's type V2, opaque elements of two bytes, is read as
/// bfloat16. Throws an Error that begins with `label` if the bytes are not a .npy file, if there
/// are fewer or more of them than the header says, or if the type is not in element_types.
Tensor parse_npy(std::string_view bytes, const std::string& label);

/// Writes the file completely or not at all. Throws an Error.
void write_npy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace cudarelu::cli

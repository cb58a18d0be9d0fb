// NumPy's .npy files: format versions 1 to 3, little-endian, in C or Fortran order.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tensor.h"

namespace cudarelu::cli {

/// The array that `bytes` are the file of. Throws an Error that begins with `label` where they are
/// no .npy file, are fewer or more than the header says, or hold elements that are not in
/// element_types. V2, as NumPy calls elements of two bytes that it does not know, is read as
/// bfloat16.
Tensor parse_npy(std::string_view bytes, const std::string& label);

/// Writes the file, whole or not at all; throws an Error where it cannot.
void write_npy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace cudarelu::cli

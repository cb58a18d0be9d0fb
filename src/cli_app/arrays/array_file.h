// Reading and writing arrays in all supported file formats: .npy, .npz and .pb.
#pragma once

#include <filesystem>
#include <string>

#include "arrays/tensor.h"

namespace cudarelu::cli {

/// Reads an array. The extension of the file selects the format: .npz is an archive, of which the
/// array `name` is read, or with `or_only` its only array, whatever the name; .pb is a TensorProto;
/// every other file is read as .npy. Throws an Error that names the file.
Tensor read_array(const std::filesystem::path& path, const std::string& name, bool or_only = true);

/// Writes each output to <folder>/<name>.npy and returns the files. A file is written completely or
/// not at all. Names are converted by file_name(); equal names get a _ appended. Throws an Error.
std::vector<std::filesystem::path> write_outputs(const std::filesystem::path& folder,
                                                 const std::vector<std::string>& names,
                                                 const std::vector<Tensor>& outputs);

/// Returns the name with _ in place of every character other than letters, digits, _, - and a .
/// that is not the first character: "a/b.c" becomes "a_b.c".
std::string file_name(std::string name);

}  // namespace cudarelu::cli

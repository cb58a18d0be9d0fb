// Arrays in files of any format that is known: .npy, .npz and .pb.
#pragma once

#include <filesystem>
#include <string>

#include "tensor.h"

namespace cudarelu::cli {

/// The array in the file: of a .npz archive the one of that name or, with `or_only`, its only one;
/// of a .pb file its TensorProto; of any other what NumPy saved. Throws an Error that names the
/// file.
Tensor read_array(const std::filesystem::path& path, const std::string& name, bool or_only = true);

/// DIR/<name>.npy for each output, each written whole or not at all; what a file's name should not
/// hold becomes _. Throws an Error.
std::vector<std::filesystem::path> write_outputs(const std::filesystem::path& folder,
                                                 const std::vector<std::string>& names,
                                                 const std::vector<Tensor>& outputs);

/// The name, with _ for what a file's name should not hold.
std::string file_name(std::string name);

}  // namespace cudarelu::cli

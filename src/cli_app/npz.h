// NumPy's .npz files: zip archives of .npy files, stored or deflated.
#pragma once

#include <filesystem>
#include <string>

#include "tensor.h"

namespace cudarelu::cli {

/// The array `name` of the archive or, with `or_only`, the only one that is in it. Throws an Error
/// that names the file where it is no archive, lacks the array, or is damaged.
Tensor read_npz(const std::filesystem::path& path, const std::string& name, bool or_only);

}  // namespace cudarelu::cli

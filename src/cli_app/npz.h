// Reading NumPy's .npz files: zip archives of .npy files, stored or deflated.
#pragma once

#include <filesystem>
#include <string>

#include "tensor.h"

namespace cudarelu::cli {

/// Reads the array `name` from the archive or, with `or_only`, its only array, whatever the name.
/// Throws an Error that names the file if it is not an archive, lacks the array, or is damaged.
Tensor read_npz(const std::filesystem::path& path, const std::string& name, bool or_only);

}  // namespace cudarelu::cli

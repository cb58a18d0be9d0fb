// Reading NumPy's .npz files: zip archives of .npy files, stored or deflated.
#pragma once

#include <string>
#include <string_view>

#include "arrays/tensor.h"

namespace cudarelu::cli {

/// Reads the array `name` of an archive or, with `or_only`, its only array, whatever the name.
/// Throws an Error that begins with `label` if the bytes are not an archive, lack the array, or are
/// damaged.
Tensor parse_npz(std::string_view file, const std::string& label, const std::string& name,
                 bool or_only);

}  // namespace cudarelu::cli

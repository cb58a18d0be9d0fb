// The folders of installed Python packages, which carry ONNX Runtime and CUDA's libraries.
#pragma once

#include <filesystem>
#include <vector>

namespace cudarelu::cli {

/// Those that there are of: the folder where `onnx_runtime`, a library, is part of a package;
/// the active virtual environment's; and that of the environment that ort_infer is installed in.
std::vector<std::filesystem::path> python_packages(const std::filesystem::path& onnx_runtime);

}  // namespace cudarelu::cli

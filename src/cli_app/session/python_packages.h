// The folders of installed Python packages, which contain ONNX Runtime and CUDA's libraries.
#pragma once

#include <filesystem>
#include <vector>

namespace cudarelu::cli {

/// Returns these folders, as far as they exist: the one with the package that contains the library
/// `onnx_runtime`; those of the active virtual environment; and those of the environment that
/// ort_infer is installed in.
std::vector<std::filesystem::path> python_packages(const std::filesystem::path& onnx_runtime);

}  // namespace cudarelu::cli

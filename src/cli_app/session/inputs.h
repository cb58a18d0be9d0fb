// The inputs of a run: those that the user gives, and random numbers for the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "arrays/tensor.h"
#include "session/session.h"

namespace cudarelu::cli {

/// The size of a free dimension that neither an option nor a file determines.
inline constexpr std::int64_t default_size = 4;

/// What the user says about the inputs.
struct InputRequest {
  /// By input name: a file (array_file.h), "random", "zeros", "ones" or a number.
  std::map<std::string, std::string> sources;
  std::map<std::string, std::int64_t> sizes;  // of free dimensions, by name
  std::uint64_t seed = 0;
};

struct Inputs {
  std::vector<Tensor> tensors;                // in the model's order
  std::vector<std::filesystem::path> files;   // one for each input; empty if it is generated
  std::vector<std::string> sources;           // one for each input: the file, "random", ...
  std::map<std::string, std::int64_t> sizes;  // of the named free dimensions that have one size
  std::vector<std::string> notes;             // about names that have several sizes
};

/// Reads the inputs that have files, checks them against the model, and generates the others.
/// Random floating-point numbers are in [-1, 1), random integers are from 0 to 9. The names of free
/// dimensions are hints, as in ONNX Runtime: the dimensions of a file have any size. Where there is
/// no file, the size comes from `sizes`, else from the first file with the name, else it is
/// default_size. Throws an Error.
Inputs make_inputs(const std::vector<InputInfo>& infos, const InputRequest& request);

/// Makes the files input_0.pb, input_1.pb, ... of a folder the sources of the inputs that have none
/// yet. Throws an Error if such a file is missing.
void add_folder(const std::filesystem::path& folder, const std::vector<InputInfo>& infos,
                std::map<std::string, std::string>& sources);

}  // namespace cudarelu::cli

// The inputs of a run: what the user names, and random numbers for the rest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "session.h"
#include "tensor.h"

namespace cudarelu::cli {

/// The size of a free dimension that nothing fixes.
inline constexpr std::int64_t default_size = 4;

struct InputWishes {
  /// By an input's name: a file (array_file.h), "random", "zeros", "ones" or a number.
  std::map<std::string, std::string> sources;
  std::map<std::string, std::int64_t> sizes;  // of free dimensions, by name
  std::uint64_t seed = 0;
};

struct Inputs {
  std::vector<Tensor> tensors;                // in the model's order
  std::vector<std::filesystem::path> files;   // each one's; empty: made
  std::vector<std::string> sources;           // each one's: the file, "random", "zeros", ...
  std::map<std::string, std::int64_t> sizes;  // of the named free dimensions
};

/// Reads the files, holds them against what the model wants, and makes the rest; random real
/// numbers are in [-1, 1), integers from 0 to 9. A free dimension has the size that `sizes` names,
/// else what the files have, else default_size. Throws an Error.
Inputs make_inputs(const std::vector<InputInfo>& infos, const InputWishes& wishes);

/// The files input_0.pb, input_1.pb, ... of a folder as the sources of those inputs that have none.
/// Throws an Error where one is missing.
void add_folder(const std::filesystem::path& folder, const std::vector<InputInfo>& infos,
                std::map<std::string, std::string>& sources);

}  // namespace cudarelu::cli

// The inputs of a run: files that the user names, and random numbers for the rest.
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

struct Inputs {
  std::vector<Tensor> tensors;                // in the model's order
  std::vector<std::filesystem::path> files;   // each one's; empty: random
  std::map<std::string, std::int64_t> sizes;  // of the named free dimensions
};

/// Reads the files, holds them against what the model wants, and makes random tensors of the rest:
/// real numbers in [-1, 1), integers from 0 to 9. A free dimension has the size that `sizes` names,
/// else what the files have, else default_size. Throws an Error.
Inputs make_inputs(const std::vector<InputInfo>& infos,
                   const std::map<std::string, std::filesystem::path>& files,
                   const std::map<std::string, std::int64_t>& sizes, std::uint64_t seed);

}  // namespace cudarelu::cli

// What was measured to be fastest, kept in files: lines "product = algorithm".
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>

#include "cudarelu/call.h"

namespace cudarelu::cuda {

/// The folder that the environment variable CUDARELU_TUNING_DIR names, made where it is missing;
/// empty: nothing is measured.
const std::filesystem::path& tuning_folder();

using TuningRecords = std::map<std::string, std::string, std::less<>>;

/// The records of a file; none where there is no such file. What is not a record is passed over.
TuningRecords read_tuning(const std::filesystem::path& file);

/// Adds a record to those that the file has by now, in the place of one of the same product. The
/// file is there whole or as it was before.
Status write_tuning(const std::filesystem::path& file, const std::string& product,
                    const std::string& algorithm);

/// Runs each of `count` alternatives on the stream some times and waits for them, which a stream
/// that is captured cannot. `best` is the fastest, the earlier where two differ by less than 2 %.
cudaError_t find_fastest(cudaStream_t stream, std::size_t count,
                         FunctionRef<cudaError_t(std::size_t)> run, std::size_t& best);

}  // namespace cudarelu::cuda

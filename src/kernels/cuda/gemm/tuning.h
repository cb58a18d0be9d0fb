// The algorithms that were measured to be fastest, in files of lines "product = algorithm".
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>

#include "cudarelu/call.h"

namespace cudarelu::gpu {

/// The folder in the environment variable CUDARELU_TUNING_DIR, which write_tuning() creates; empty
/// if nothing is to be measured.
const std::filesystem::path& tuning_folder();

using TuningRecords = std::map<std::string, std::string, std::less<>>;

/// The records of a file; none if it does not exist. Ignores lines that are not records.
TuningRecords read_tuning(const std::filesystem::path& file);

/// Adds a record to the file, or replaces that of the same product. The file is replaced as a
/// whole, so that readers never see a part.
Status write_tuning(const std::filesystem::path& file, const std::string& product,
                    const std::string& algorithm);

/// Runs each of `count` alternatives several times on the stream, which must not be in a capture,
/// and waits for them. `best` is the fastest, or the earlier of two that differ by less than 2 %.
cudaError_t find_fastest(cudaStream_t stream, std::size_t count,
                         FunctionRef<cudaError_t(std::size_t)> run, std::size_t& best);

}  // namespace cudarelu::gpu

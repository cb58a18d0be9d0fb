// The options of the command line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "arrays/compare.h"

namespace cudarelu::cli {

struct MeasureOptions {
  std::int64_t warmup = 10;
  std::optional<std::int64_t> iterations;
  std::optional<double> seconds;
  std::int64_t concurrency = 1;
  std::vector<std::int64_t> batches;  // of --batch-sweep; empty: no sweep
  bool cuda_graph = false;
  std::optional<bool> io_binding;  // default: only on CUDA
};

struct BatchOptions {
  std::string list;  // a file or a folder
  bool resume = false;
  bool stop_on_error = false;
};

struct Options {
  std::string model;
  std::string provider = "auto";
  std::int64_t device = 0;
  bool require_cuda = false;
  std::optional<std::int64_t> max_memcpy;
  bool explain = false;
  std::vector<std::string> libraries;
  std::string ort;

  std::vector<std::string> inputs;  // each NAME=X, for by_name()
  std::string input_folder;
  std::map<std::string, std::int64_t> sizes;  // of free dimensions, by name
  std::uint64_t seed = 0;
  std::optional<std::size_t> max_array_bytes;

  std::string output_dir;
  std::vector<std::string> compared;  // each NAME=FILE, for by_name()
  Tolerance tolerance;

  std::optional<MeasureOptions> measure;
  std::string profile;
  std::optional<BatchOptions> batch;
  bool json = false;
};

/// Parses texts of the form NAME=VALUE and returns the values by name. Names and values may contain
/// =: NAME is the longest one that is in `names`, the names of the model, else the text before the
/// first =. With `names` "a" and "a=b", the text "a=b=c.npy" gives "a=b" the value "c.npy". Throws
/// an Error if a name is given twice.
std::map<std::string, std::string> by_name(const std::string& option,
                                           const std::vector<std::string>& texts,
                                           const std::vector<std::string>& names);

/// Parses the command line. Returns nothing after it has printed --help or --version. Throws an
/// Error.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace cudarelu::cli

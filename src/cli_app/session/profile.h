// The nodes that ran and their providers, from the trace that ONNX Runtime writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "session/model_ops.h"

namespace cudarelu::cli {

/// One node of a run, in the graph that ONNX Runtime has optimized.
struct NodeRun {
  std::string name;    // may be empty
  std::string domain;  // empty: ONNX's domain, or unknown
  std::string op_type;
  std::string provider;              // for example CPUExecutionProvider
  std::vector<std::string> inputs;   // for example "float32 [2, 4]"
  std::vector<std::string> outputs;  // likewise

  /// Whether it copies a tensor between devices.
  bool is_copy() const { return op_type == "MemcpyFromHost" || op_type == "MemcpyToHost"; }
};

/// A temporary folder for the trace; the destructor removes it.
class ProfileFolder {
 public:
  ProfileFolder();
  ~ProfileFolder();
  ProfileFolder(const ProfileFolder&) = delete;
  ProfileFolder& operator=(const ProfileFolder&) = delete;

  std::filesystem::path prefix() const { return folder_ / "trace"; }

 private:
  std::filesystem::path folder_;
};

/// Reads the nodes of the first run from a trace. Their domains come from `ops`, since the trace
/// does not contain them.
std::vector<NodeRun> read_profile(const std::filesystem::path& file, const ModelOps& ops);

/// Throws an Error if more than `max` nodes copy tensors between devices.
void check_copies(const std::vector<NodeRun>& nodes, std::optional<std::int64_t> max);

}  // namespace cudarelu::cli

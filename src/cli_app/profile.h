// What ran where, from the trace that ONNX Runtime writes of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model_ops.h"

namespace cudarelu::cli {

/// A node that ran, after the runtime's rewriting of the graph.
struct NodeRun {
  std::string name;    // may be empty
  std::string domain;  // empty: ONNX's, or not known
  std::string op_type;
  std::string provider;              // for example CPUExecutionProvider
  std::vector<std::string> inputs;   // "float32 [2, 4]"
  std::vector<std::string> outputs;  // the same

  /// Whether it copies a tensor between devices.
  bool is_copy() const { return op_type == "MemcpyFromHost" || op_type == "MemcpyToHost"; }
};

/// A new temporary folder for the trace, removed with all it holds.
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

/// The nodes of the first run of the trace. Takes the domains, which the trace lacks, from the
/// model's own nodes.
std::vector<NodeRun> read_profile(const std::filesystem::path& file, const ModelOps& ops);

/// Throws an Error that names the nodes where more of them than `max` copy tensors between devices.
void check_copies(const std::vector<NodeRun>& nodes, std::optional<std::int64_t> max);

}  // namespace cudarelu::cli

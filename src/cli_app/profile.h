// What ran where, from the trace that ONNX Runtime writes of a run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model_ops.h"

namespace cudarelu::cli {

/// A node that ran, after the runtime's rewriting of the graph.
struct NodeRun {
  std::string name;    // may be empty
  std::string domain;  // empty: ONNX's, or not known
  std::string op_type;
  std::string provider;  // for example CPUExecutionProvider
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

/// Takes the domains, which the trace lacks, from the model's own nodes.
std::vector<NodeRun> read_profile(const std::filesystem::path& file, const ModelOps& ops);

}  // namespace cudarelu::cli

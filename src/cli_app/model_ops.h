// The ops that a model file calls, read from the file itself.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace cudarelu::cli {

struct OpName {
  std::string domain;
  std::string type;

  auto operator<=>(const OpName&) const = default;
};

struct ModelOps {
  std::map<OpName, std::set<std::string>> calls;  // the names of the nodes that call each op
  std::set<OpName> functions;                     // the ops that the model itself defines
  std::set<std::string> scalar_inputs;            // ONNX Runtime shows them like inputs of any rank
  std::string mistake;                            // in a call of our ops that the runtime overlooks
  bool complete = false;                          // false: not a model, or a truncated one

  /// The domain of a node; empty where the file does not tell.
  std::string domain_of(const std::string& node, const std::string& type) const;
};

/// Domains of ONNX models.
using DomainNames = std::set<std::string>;

/// `own` are the domains that our ops are registered under.
ModelOps read_model_ops(const std::filesystem::path& model, const DomainNames& own);

/// Why ONNX Runtime has not loaded the model, in one line that says how to mend it: `message` is
/// what the runtime says.
std::string why_not_loaded(const std::filesystem::path& model, const DomainNames& own,
                           const std::string& message);

}  // namespace cudarelu::cli

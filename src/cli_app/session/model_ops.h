// The ops that a model calls, read from the model file.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace cudarelu::cli {

struct OpName {
  std::string domain;
  std::string type;

  auto operator<=>(const OpName&) const = default;
};

struct ModelOps {
  std::map<OpName, std::set<std::string>> calls;  // the names of the nodes that call each op
  std::set<OpName> functions;                     // the ops that the model itself defines
  std::set<std::string> scalar_inputs;  // to ONNX Runtime they look like inputs of unknown rank
  std::set<std::string> data_files;     // of external data, as the model names them
  std::string mistake;                  // in a call of a module's op, which ONNX Runtime ignores
  bool complete = false;                // false: not a model, or a truncated one

  /// Returns the domain of a node; empty if the file does not determine it.
  std::string domain_of(const std::string& node, const std::string& type) const;
};

using DomainNames = std::set<std::string>;

/// `own` holds the domains that the ops of modules are registered in.
ModelOps read_model_ops(const std::filesystem::path& model, const DomainNames& own);

/// As read_model_ops(), of the bytes of a model.
ModelOps parse_model_ops(std::string_view bytes, const DomainNames& own);

/// Throws an Error if the model is not complete, and if external data is missing or outside of its
/// folder: old versions of ONNX Runtime read any file, and memory if they are given an address.
void check_model(const std::filesystem::path& model, const ModelOps& ops);

/// Explains in one line why ONNX Runtime has not loaded the model, and how to correct it. `message`
/// is the error of ONNX Runtime.
std::string why_not_loaded(const std::filesystem::path& model, const ModelOps& ops,
                           const DomainNames& own, const std::string& message);

}  // namespace cudarelu::cli

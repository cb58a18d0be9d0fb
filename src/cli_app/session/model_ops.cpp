#include "session/model_ops.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "arrays/mapped_file.h"
#include "arrays/protobuf.h"
#include "cudarelu/op.h"
#include "error.h"

namespace cudarelu::cli {
namespace {

/// Field numbers of onnx.proto.
enum : std::uint64_t {
  model_graph = 7,
  model_functions = 25,
  graph_node = 1,
  graph_initializer = 5,
  graph_input = 11,
  graph_sparse_initializer = 15,
  value_name = 1,
  value_type = 2,
  type_tensor = 1,
  tensor_shape = 2,
  node_name = 3,
  node_op_type = 4,
  node_attribute = 5,
  node_domain = 7,
  attribute_name = 1,
  attribute_tensor = 5,
  attribute_graph = 6,
  attribute_tensors = 10,
  attribute_graphs = 11,
  attribute_sparse_tensor = 22,
  attribute_sparse_tensors = 23,
  sparse_values = 1,
  sparse_indices = 2,
  tensor_external_data = 13,
  entry_key = 1,
  entry_value = 2,
  function_name = 1,
  function_node = 7,
  function_domain = 10,
  function_attribute = 11,
};

/// Returns the op of that name in a module, or nullptr.
const Op* own_op(const OpName& name) {
  for (const Module* module : modules()) {
    const auto op = std::ranges::find_if(module->ops, [&](const Op& op) {
      const OnnxAlias& alias = op.spec.onnx_alias;
      return (name.domain == module->onnx_domain && name.type == op.onnx_type) ||
             (name.domain == alias.domain && name.type == alias.op_type);
    });
    if (op != module->ops.end()) return &*op;
  }
  return nullptr;
}

void append(std::string& list, std::string_view item) {
  if (!list.empty()) list += ", ";
  list += item;
}

/// Whether an attribute of an op is an input of its nodes of that name.
bool is_input(const OpName& name, const Op& op, int attribute) {
  const OnnxAlias& alias = op.spec.onnx_alias;
  return name.domain == alias.domain && name.type == alias.op_type &&
         std::ranges::find(op.alias_inputs, NodeInput{true, static_cast<std::size_t>(attribute)}) !=
             op.alias_inputs.end();
}

/// Returns an error message if a node of a module's op has an attribute that its op lacks, else "".
/// ONNX Runtime ignores such attributes.
std::string unknown_attribute(const OpName& name, const DomainNames& own,
                              const std::set<std::string>& attributes) {
  const Op* op = own.contains(name.domain) ? own_op(name) : nullptr;
  if (op == nullptr) return "";
  const auto& specs = op->signature.attributes;
  for (const std::string& attribute : attributes) {
    const int index = index_of(specs, attribute);
    if (index >= 0 && !is_input(name, *op, index)) continue;
    if (index >= 0) return name.type + " has the attribute " + attribute + " as an input";
    std::string known;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (!is_input(name, *op, static_cast<int>(i))) append(known, specs[i].name);
    }
    return name.type + " has no attribute " + attribute + "; it has " +
           (known.empty() ? "none" : known);
  }
  return "";
}

/// Calls `take` for each field of a message, and notes in `ops` if the message is malformed.
template <class F>
void each_field(std::string_view bytes, ModelOps& ops, F take) {
  Message message(bytes);
  while (message.next()) take(message);
  ops.complete &= !message.malformed();
}

/// Returns the name of a graph input (a ValueInfoProto) that is declared a scalar; "" for others.
std::string scalar_input(std::string_view value_bytes, ModelOps& ops) {
  std::string name;
  bool has_shape = false;
  bool has_dims = false;
  each_field(value_bytes, ops, [&](const Message& value) {
    if (value.field() == value_name) name = value.data();
    if (value.field() != value_type) return;
    each_field(value.data(), ops, [&](const Message& type) {
      if (type.field() != type_tensor) return;
      each_field(type.data(), ops, [&](const Message& tensor) {
        if (tensor.field() != tensor_shape) return;
        has_shape = true;
        has_dims = !tensor.data().empty();
      });
    });
  });
  return has_shape && !has_dims ? name : "";
}

/// Adds the file that a tensor's data is in to `ops`.
void read_tensor(std::string_view bytes, ModelOps& ops) {
  each_field(bytes, ops, [&](const Message& tensor) {
    if (tensor.field() != tensor_external_data) return;
    std::string_view key;
    std::string_view value;
    each_field(tensor.data(), ops, [&](const Message& entry) {
      if (entry.field() == entry_key) key = entry.data();
      if (entry.field() == entry_value) value = entry.data();
    });
    if (key == "location") ops.data_files.emplace(value);
  });
}

void read_sparse_tensor(std::string_view bytes, ModelOps& ops) {
  each_field(bytes, ops, [&](const Message& sparse) {
    if (sparse.field() == sparse_values || sparse.field() == sparse_indices) {
      read_tensor(sparse.data(), ops);
    }
  });
}

void read_graph(std::string_view bytes, const DomainNames& own, int depth, ModelOps& ops);

/// Adds the tensors and the subgraphs of an attribute to `ops`; returns its name.
std::string read_attribute(std::string_view bytes, const DomainNames& own, int depth,
                           ModelOps& ops) {
  std::string name;
  each_field(bytes, ops, [&](const Message& attribute) {
    switch (attribute.field()) {
      case attribute_name:
        name = attribute.data();
        break;
      case attribute_tensor:
      case attribute_tensors:
        read_tensor(attribute.data(), ops);
        break;
      case attribute_sparse_tensor:
      case attribute_sparse_tensors:
        read_sparse_tensor(attribute.data(), ops);
        break;
      case attribute_graph:
      case attribute_graphs:
        read_graph(attribute.data(), own, depth + 1, ops);
        break;
      default:
        break;
    }
  });
  return name;
}

/// Adds the call of a node, and what its attributes contain, to `ops`.
void read_node(std::string_view bytes, const DomainNames& own, int depth, ModelOps& ops) {
  OpName name;
  std::string node_label;
  std::set<std::string> attributes;
  each_field(bytes, ops, [&](const Message& node) {
    if (node.field() == node_name) node_label = node.data();
    if (node.field() == node_op_type) name.type = node.data();
    if (node.field() == node_domain) name.domain = node.data();
    if (node.field() == node_attribute) {
      attributes.insert(read_attribute(node.data(), own, depth, ops));
    }
  });
  if (ops.mistake.empty()) ops.mistake = unknown_attribute(name, own, attributes);
  ops.calls[name].insert(node_label);
}

/// Adds the nodes and the tensors of a graph and of its subgraphs to `ops`.
void read_graph(std::string_view bytes, const DomainNames& own, int depth, ModelOps& ops) {
  constexpr int max_depth = 64;  // more than ONNX Runtime reads
  if (depth > max_depth) {
    ops.complete = false;
    return;
  }
  each_field(bytes, ops, [&](const Message& graph) {
    if (graph.field() == graph_node) read_node(graph.data(), own, depth, ops);
    if (graph.field() == graph_initializer) read_tensor(graph.data(), ops);
    if (graph.field() == graph_sparse_initializer) read_sparse_tensor(graph.data(), ops);
    if (depth == 0 && graph.field() == graph_input) {
      ops.scalar_inputs.insert(scalar_input(graph.data(), ops));
    }
  });
}

void read_function(std::string_view bytes, const DomainNames& own, ModelOps& ops) {
  OpName name;
  each_field(bytes, ops, [&](const Message& function) {
    if (function.field() == function_name) name.type = function.data();
    if (function.field() == function_domain) name.domain = function.data();
    if (function.field() == function_node) read_node(function.data(), own, 0, ops);
    if (function.field() == function_attribute) read_attribute(function.data(), own, 0, ops);
  });
  ops.functions.insert(name);
}

bool is_known(const OpName& name, const DomainNames& own) {
  if (name.domain.empty() || name.domain.starts_with("ai.onnx") ||
      name.domain.starts_with("com.microsoft")) {
    return true;
  }
  return own.contains(name.domain) && own_op(name) != nullptr;
}

/// Lists the ops by domain: "cudarelu (Relu, Tanh), custom_domain (CustomRelu)".
std::string known_ops(const DomainNames& own) {
  std::string list;
  std::map<std::string, std::string> aliases;
  for (const Module* module : modules()) {
    std::string types;
    for (const Op& op : module->ops) {
      append(types, op.onnx_type);
      const std::string alias(op.spec.onnx_alias.domain);
      if (own.contains(alias)) append(aliases[alias], op.spec.onnx_alias.op_type);
    }
    append(list, std::string(module->onnx_domain).append(" (").append(types).append(")"));
  }
  for (const auto& [domain, types] : aliases) {
    append(list, std::string(domain).append(" (").append(types).append(")"));
  }
  return list;
}

}  // namespace

std::string ModelOps::domain_of(const std::string& node, const std::string& type) const {
  std::vector<const OpName*> candidates;
  for (const auto& [op, names] : calls) {
    if (op.type != type) continue;
    if (!node.empty() && names.contains(node)) return op.domain;
    candidates.push_back(&op);
  }
  return candidates.size() == 1 ? candidates.front()->domain : "";
}

ModelOps read_model_ops(const std::filesystem::path& path, const DomainNames& own) {
  return parse_model_ops(MappedFile(path).bytes(), own);
}

ModelOps parse_model_ops(std::string_view bytes, const DomainNames& own) {
  ModelOps ops;
  ops.complete = true;
  bool has_graph = false;
  each_field(bytes, ops, [&](const Message& model) {
    if (model.field() == model_graph) {
      has_graph = true;
      read_graph(model.data(), own, 0, ops);
    }
    if (model.field() == model_functions) read_function(model.data(), own, ops);
  });
  ops.complete &= has_graph;
  return ops;
}

void check_model(const std::filesystem::path& model, const ModelOps& ops) {
  using Path = std::filesystem::path;
  if (!ops.complete) {  // as this program reads it: ONNX Runtime might find more files in it
    throw Error(model.string() +
                ": not an ONNX model, or a truncated one; export or copy it again");
  }
  std::error_code error;
  // A download may have links to the model and to its data: each folder may have the data.
  const Path folders[] = {std::filesystem::canonical(model, error).parent_path(),
                          std::filesystem::canonical(model.parent_path() / ".", error)};
  for (const std::string& name : ops.data_files) {
    const Path file = std::filesystem::canonical(model.parent_path() / name, error);
    const bool inside = std::ranges::any_of(folders, [&](const Path& folder) {
      return std::ranges::mismatch(folder, file).in1 == folder.end();
    });
    if (error || Path(name).is_absolute() || !inside) {
      throw Error(model.string() + ": its external data " + name +
                  (error ? ": there is no such file" : " is not in its folder"));
    }
  }
}

std::string why_not_loaded(const std::filesystem::path& model, const ModelOps& ops,
                           const DomainNames& own, const std::string& message) {
  std::string unknown;
  for (const auto& [name, nodes] : ops.calls) {
    if (!is_known(name, own) && !ops.functions.contains(name)) {
      const bool left_to_others = own_op(name) != nullptr;
      append(unknown, name.domain + "::" + name.type +
                          (left_to_others ? " (its domain is that of a --library)" : ""));
    }
  }
  const bool unregistered = message.find("is not a registered function/op") != message.npos ||
                            message.find("No opset import for domain") != message.npos;
  if (unregistered && !unknown.empty()) {
    return model.string() + ": uses the custom ops " + unknown + ", which are not among " +
           known_ops(own) + "; name the library that has them with --library FILE";
  }
  return model.string() + ": " + message;
}

}  // namespace cudarelu::cli

#include "model_ops.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cudarelu/op.h"
#include "mapped_file.h"
#include "protobuf.h"

namespace cudarelu::cli {
namespace {

/// Field numbers of onnx.proto.
enum : std::uint64_t {
  model_graph = 7,
  model_functions = 25,
  graph_node = 1,
  graph_input = 11,
  value_name = 1,
  value_type = 2,
  type_tensor = 1,
  tensor_shape = 2,
  node_name = 3,
  node_op_type = 4,
  node_attribute = 5,
  node_domain = 7,
  attribute_name = 1,
  attribute_graph = 6,
  attribute_graphs = 11,
  function_name = 1,
  function_node = 7,
  function_domain = 10,
};

/// Returns the op of that name in a module, or nullptr.
const Op* own_op(const OpName& name) {
  for (const Module* module : modules()) {
    const auto op = std::ranges::find_if(module->ops, [&](const Op& op) {
      const OnnxName& alias = op.spec.onnx_alias;
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

/// Returns an error message if a node of a module's op has an attribute that its op lacks, else "".
/// ONNX Runtime ignores such attributes.
std::string unknown_attribute(const OpName& name, const DomainNames& own,
                              const std::set<std::string>& attributes) {
  const Op* op = own.contains(name.domain) ? own_op(name) : nullptr;
  if (op == nullptr) return "";
  const auto& specs = op->signature.attributes;
  for (const std::string& attribute : attributes) {
    if (index_of(specs, attribute) >= 0) continue;
    std::string known;
    for (const AttributeSpec& spec : specs) append(known, spec.name);
    return name.type + " has no attribute " + attribute + "; it has " +
           (known.empty() ? "none" : known);
  }
  return "";
}

/// Returns the name of a graph input (a ValueInfoProto) that is declared a scalar; "" for others.
std::string scalar_input(std::string_view value_bytes) {
  std::string name;
  bool has_shape = false;
  bool has_dims = false;
  Message value(value_bytes);
  while (value.next()) {
    if (value.field() == value_name) name = value.data();
    if (value.field() != value_type) continue;
    Message type(value.data());
    while (type.next()) {
      if (type.field() != type_tensor) continue;
      Message tensor(type.data());
      while (tensor.next()) {
        if (tensor.field() != tensor_shape) continue;
        has_shape = true;
        has_dims = !tensor.data().empty();
      }
    }
  }
  return has_shape && !has_dims ? name : "";
}

/// Adds the nodes of a graph or function and of its subgraphs to `ops`.
void read_graph(std::string_view bytes, std::uint64_t node_field, const DomainNames& own, int depth,
                ModelOps& ops) {
  constexpr int max_depth = 64;
  if (depth > max_depth) return;
  Message graph(bytes);
  while (graph.next()) {
    if (graph.field() != node_field) continue;
    OpName name;
    std::string node_label;
    std::set<std::string> attributes;
    Message node(graph.data());
    while (node.next()) {
      if (node.field() == node_name) node_label = node.data();
      if (node.field() == node_op_type) name.type = node.data();
      if (node.field() == node_domain) name.domain = node.data();
      if (node.field() != node_attribute) continue;
      Message attribute(node.data());
      while (attribute.next()) {
        if (attribute.field() == attribute_name) attributes.emplace(attribute.data());
        if (attribute.field() == attribute_graph || attribute.field() == attribute_graphs) {
          read_graph(attribute.data(), graph_node, own, depth + 1, ops);
        }
      }
    }
    if (ops.mistake.empty()) ops.mistake = unknown_attribute(name, own, attributes);
    ops.calls[name].insert(node_label);
  }
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
  const MappedFile file(path);
  ModelOps ops;
  Message model(file.bytes());
  bool has_graph = false;
  while (model.next()) {
    if (model.field() == model_graph) {
      has_graph = true;
      read_graph(model.data(), graph_node, own, 0, ops);
      Message graph(model.data());
      while (graph.next()) {
        if (graph.field() == graph_input) ops.scalar_inputs.insert(scalar_input(graph.data()));
      }
    }
    if (model.field() != model_functions) continue;
    read_graph(model.data(), function_node, own, 0, ops);
    OpName name;
    Message function(model.data());
    while (function.next()) {
      if (function.field() == function_name) name.type = function.data();
      if (function.field() == function_domain) name.domain = function.data();
    }
    ops.functions.insert(name);
  }
  ops.complete = has_graph && !model.malformed();
  return ops;
}

std::string why_not_loaded(const std::filesystem::path& model, const DomainNames& own,
                           const std::string& message) {
  const ModelOps ops = read_model_ops(model, own);
  if (!ops.complete) {
    return model.string() + ": not an ONNX model, or a truncated one; export or copy it again";
  }
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

#include "session/profile.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "error.h"
#include "json.h"

namespace cudarelu::cli {
namespace {

/// Converts [{"float": [2, 4]}, ...] to "float32 [2, 4]", ....
std::vector<std::string> tensors(const Json& arguments, const char* key) {
  std::vector<std::string> texts;
  for (const Json& tensor : arguments.value(key, Json::array())) {
    for (const auto& [type, shape] : tensor.items()) {
      const std::string name = type == "float" ? "float32" : type == "double" ? "float64" : type;
      std::string sizes;
      for (const Json& size : shape) sizes.append(sizes.empty() ? " [" : ", ").append(size.dump());
      texts.emplace_back(name).append(sizes.empty() ? " [" : sizes).append("]");
    }
  }
  return texts;
}

}  // namespace

ProfileFolder::ProfileFolder() {
  std::error_code error;
  std::string pattern = (std::filesystem::temp_directory_path(error) / "ort_infer.XXXXXX").string();
  if (error || mkdtemp(pattern.data()) == nullptr) {
    throw Error("cannot create a temporary folder; set TMPDIR to a writable folder");
  }
  folder_ = pattern;
}

ProfileFolder::~ProfileFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::vector<NodeRun> read_profile(const std::filesystem::path& file, const ModelOps& ops) {
  constexpr std::string_view suffix = "_kernel_time";
  std::ifstream stream(file);
  std::vector<NodeRun> nodes;
  // A bad trace does not make the run an error. It contains the names that a model has chosen.
  try {
    for (const Json& event : Json::parse(stream)) {
      std::string name = event.value("name", "");
      if (name == "model_run") break;  // the end of the first run
      if (event.value("cat", "") != "Node" || !name.ends_with(suffix)) continue;
      name.resize(name.size() - suffix.size());
      const Json& arguments = event.at("args");
      const std::string type = arguments.value("op_name", "");
      nodes.push_back({name, ops.domain_of(name, type), type, arguments.value("provider", ""),
                       tensors(arguments, "input_type_shape"),
                       tensors(arguments, "output_type_shape")});
    }
  } catch (const Json::exception&) {
    nodes.clear();
  }
  return nodes;
}

void check_copies(const std::vector<NodeRun>& nodes, std::optional<std::int64_t> max) {
  std::vector<std::string> copies;
  for (const NodeRun& node : nodes) {
    if (node.is_copy()) copies.push_back(node.name);
  }
  if (!max || std::ssize(copies) <= *max) return;
  throw Error(std::to_string(copies.size()) + " copies between devices, but --max-memcpy allows " +
              std::to_string(*max) + ": " + joined(copies));
}

}  // namespace cudarelu::cli

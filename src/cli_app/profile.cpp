#include "profile.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "error.h"

namespace cudarelu::cli {

ProfileFolder::ProfileFolder() {
  std::error_code error;
  std::string pattern = (std::filesystem::temp_directory_path(error) / "ort_infer.XXXXXX").string();
  if (error || mkdtemp(pattern.data()) == nullptr) {
    throw Error("no temporary folder can be made; set TMPDIR to a folder that can be written");
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
  const auto events = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  std::vector<NodeRun> nodes;
  if (!events.is_array()) return nodes;  // the run itself is fine
  for (const auto& event : events) {
    std::string name = event.value("name", "");
    if (event.value("cat", "") != "Node" || !name.ends_with(suffix)) continue;
    name.resize(name.size() - suffix.size());
    const auto& arguments = event.at("args");
    const std::string type = arguments.value("op_name", "");
    nodes.push_back({name, ops.domain_of(name, type), type, arguments.value("provider", "")});
  }
  return nodes;
}

}  // namespace cudarelu::cli

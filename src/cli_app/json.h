#pragma once

#include <nlohmann/json.hpp>

namespace cudarelu::cli {

// Another type, such as nlohmann::json, would compile all of it again.
using Json = nlohmann::ordered_json;

}  // namespace cudarelu::cli

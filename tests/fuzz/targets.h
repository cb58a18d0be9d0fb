// The table of fuzz targets.
#pragma once

#include <string_view>
#include <vector>

namespace cudarelu::fuzz {

struct Target {
  std::string_view name;  // its seeds and past failures are in corpus/<name>
  void (*run)(std::string_view bytes);
};

const std::vector<Target>& targets();

}  // namespace cudarelu::fuzz

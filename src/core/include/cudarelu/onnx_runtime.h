// What the plugin and ort_infer share: the versions of ONNX Runtime that they support, and entries
// of a session's options. Without the header of ONNX Runtime, since src/core knows no host.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "cudarelu/op.h"

namespace cudarelu {

/// The oldest one, 1.16: the first whose kernels return a status.
inline constexpr int oldest_onnx_runtime_minor = 16;

/// Returns y of version 1.y.z; 0 for any other version.
inline int onnx_runtime_minor_of(std::string_view version) {
  int minor = 0;
  if (version.starts_with("1.")) {
    std::from_chars(version.data() + 2, version.data() + version.size(), minor);
  }
  return minor;
}

/// The entry of a session's options in which RegisterCustomOps() of the module lists the domains
/// that it has added, separated by commas.
inline std::string registered_entry(const Module& module) {
  return std::string(module.name) + ".registered";
}

/// Reads an entry of a session's options. check(status) throws if the status is an error.
template <class Api, class Options, class Check>
std::optional<std::string> session_config_entry(const Api& api, const Options& options,
                                                const std::string& entry, const Check& check) {
  const char* const key = entry.c_str();
  int present = 0;
  check(api.HasSessionConfigEntry(&options, key, &present));
  if (present == 0) return std::nullopt;
  std::size_t size = 0;  // with the NUL at the end
  check(api.GetSessionConfigEntry(&options, key, nullptr, &size));
  std::string value(size, '\0');
  check(api.GetSessionConfigEntry(&options, key, value.data(), &size));
  value.pop_back();
  return value;
}

}  // namespace cudarelu

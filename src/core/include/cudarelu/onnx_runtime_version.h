// The versions of ONNX Runtime that the plugin and ort_infer support.
#pragma once

#include <charconv>
#include <string_view>

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

}  // namespace cudarelu

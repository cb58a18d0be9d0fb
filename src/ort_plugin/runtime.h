// The ONNX Runtime that has loaded this library, and the handling of its errors.
#pragma once

#include <onnxruntime_c_api.h>

#include <exception>

#include "cudarelu/detail/status.h"

namespace cudarelu::ort {

/// One copy of ONNX Runtime; a process may hold several, of different versions.
struct Runtime {
  const OrtApi* api = nullptr;
  int minor = 0;  // the version is 1.minor

  /// The version of `api`: that of the headers or that of the runtime, whichever is older.
  int api_version() const { return minor < ORT_API_VERSION ? minor : ORT_API_VERSION; }
};

/// Determines the version of the runtime and gets its API. Throws std::runtime_error, which names
/// both versions, if the plugin does not support the runtime.
Runtime negotiate(const OrtApiBase& base);

/// An exception with an error of ONNX Runtime's API. The catch block owns the status.
struct Failure : std::exception {
  explicit Failure(OrtStatus* status) : status(status) {}

  OrtStatus* status;
};

/// Throws the error, if there is one, as a Failure.
inline void check(OrtStatus* status) {
  if (status != nullptr) [[unlikely]] {
    throw Failure(status);
  }
}

/// Returns whether there is no error, and releases the status.
inline bool succeeded(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus(status);
  return false;
}

/// Throws the error as a Failure.
[[noreturn]] void fail(const OrtApi& api, const Status& status);

inline void check(const OrtApi& api, const Status& status) {
  if (!status.ok()) [[unlikely]] {
    fail(api, status);
  }
}

/// Runs code in a callback of ONNX Runtime, and converts exceptions to a status.
template <class F>
OrtStatus* guarded(const OrtApi& api, F&& code) noexcept {
  try {
    code();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, "cudarelu: unknown exception");
  }
}

}  // namespace cudarelu::ort

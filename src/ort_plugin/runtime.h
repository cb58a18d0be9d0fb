// The ONNX Runtime that has loaded this library, and the handling of its errors.
#pragma once

#include <onnxruntime_c_api.h>

#include <exception>

#include "cudarelu/host.h"

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

/// An exception with an error of ONNX Runtime's API. The catch block owns the status. Errors of
/// cudarelu are a Failure, as for other hosts.
struct RuntimeFailure : std::exception {
  explicit RuntimeFailure(OrtStatus* status) : status(status) {}

  OrtStatus* status;
};

using cudarelu::check;

/// Throws the error, if there is one, as a RuntimeFailure.
inline void check(OrtStatus* status) {
  if (status != nullptr) [[unlikely]] {
    throw RuntimeFailure(status);
  }
}

/// Returns whether there is no error, and releases the status.
inline bool succeeded(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus(status);
  return false;
}

/// The error as ONNX Runtime returns it.
OrtStatus* to_ort(const OrtApi& api, const Status& error);

/// Runs code in a callback of ONNX Runtime, and converts exceptions to a status.
template <class F>
OrtStatus* guarded(const OrtApi& api, const F& code) noexcept {
  OrtStatus* failed = nullptr;
  const Status status = cudarelu::guarded([&] {
    try {
      code();
    } catch (const RuntimeFailure& failure) {
      failed = failure.status;
    }
  });
  return status.ok() ? failed : to_ort(api, status);
}

}  // namespace cudarelu::ort

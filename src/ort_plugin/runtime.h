// The ONNX Runtime that has loaded this library, and how its errors travel through our code.
#pragma once

#include <onnxruntime_c_api.h>

#include <exception>

#include "cudarelu/status.h"

namespace cudarelu::ort {

/// The oldest version that the plugin serves: 1.16, the first whose kernels return a status.
inline constexpr int oldest_minor = 16;

/// One copy of ONNX Runtime; a process may hold several, of different versions.
struct Runtime {
  const OrtApi* api = nullptr;
  int minor = 0;  // it is version 1.minor

  /// The version of the API that `api` speaks: the headers' or the runtime's, whichever is older.
  int api_version() const { return minor < ORT_API_VERSION ? minor : ORT_API_VERSION; }
};

/// Finds out the version that is running. Throws std::runtime_error, which names both versions,
/// where the plugin does not serve it.
Runtime negotiate(const OrtApiBase& base);

/// An error of ONNX Runtime's API, thrown; whoever catches it owns the status.
struct Failure : std::exception {
  explicit Failure(OrtStatus* status) : status(status) {}

  OrtStatus* status;
};

inline void check(OrtStatus* status) {
  if (status != nullptr) [[unlikely]] {
    throw Failure(status);
  }
}

/// The same for an error that does not matter.
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

/// Runs code that ONNX Runtime has called, through which no exception may pass.
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

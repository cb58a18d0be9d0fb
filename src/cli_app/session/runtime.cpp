#include "session/runtime.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cudarelu/onnx_runtime.h"
#include "error.h"
#include "session/python_packages.h"

namespace cudarelu::cli {
namespace {

/// Returns the libraries to try, in order.
std::vector<std::string> candidates(const std::string& file) {
  if (!file.empty()) return {library_name(file)};
  const char* variable = std::getenv("CUDARELU_ORT_LIBRARY");
  if (variable != nullptr && *variable != '\0') return {library_name(variable)};
  std::vector<std::string> candidates;
  const std::string built_with = CUDARELU_ORT_LIBRARY;
  if (!built_with.empty() && std::filesystem::exists(built_with)) candidates.push_back(built_with);
  for (const auto& packages : python_packages({})) {
    std::error_code error;
    for (const auto& file :
         std::filesystem::directory_iterator(packages / "onnxruntime/capi", error)) {
      if (file.path().filename().string().starts_with("libonnxruntime.so.")) {
        candidates.push_back(file.path());
      }
    }
  }
  candidates.insert(candidates.end(), {"libonnxruntime.so", "libonnxruntime.so.1"});
  return candidates;
}

}  // namespace

std::string library_name(const std::string& file) {
  std::error_code error;
  const bool here = file.find('/') == file.npos && std::filesystem::is_regular_file(file, error);
  return here ? std::filesystem::absolute(file).string() : file;
}

Runtime::Runtime(const std::string& file) {
  void* entry = nullptr;
  std::string reason;
  for (const std::string& candidate : candidates(file)) {
    // The library is never closed, since the ops and ONNX Runtime keep pointers to each other.
    void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) entry = dlsym(library, "OrtGetApiBase");
    if (entry != nullptr) break;
    reason = dlerror();
  }
  if (entry == nullptr) {
    throw Error("cannot open ONNX Runtime: " + reason +
                "; name its library with --ort FILE or in CUDARELU_ORT_LIBRARY");
  }
  base_ = reinterpret_cast<const OrtApiBase* (*)()>(entry)();
  library_ = library_of(entry);

  minor_ = onnx_runtime_minor_of(base_->GetVersionString());
  if (minor_ >= oldest_onnx_runtime_minor) {
    api_ = base_->GetApi(static_cast<std::uint32_t>(std::min(minor_, ORT_API_VERSION)));
  }
  if (api_ == nullptr) {
    throw Error(library_.string() + " is ONNX Runtime " + version() + ", but 1." +
                std::to_string(oldest_onnx_runtime_minor) +
                " or a later 1.x is needed; name one with --ort FILE");
  }
}

void Runtime::check(OrtStatus* status) const {
  if (status == nullptr) return;
  std::string message = api_->GetErrorMessage(status);
  api_->ReleaseStatus(status);
  throw Error(message);
}

}  // namespace cudarelu::cli

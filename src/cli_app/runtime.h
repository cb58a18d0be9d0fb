// ONNX Runtime, opened while the program runs.
#pragma once

#include <onnxruntime_c_api.h>

#include <filesystem>
#include <memory>
#include <string>

namespace cudarelu::cli {

/// An object of ONNX Runtime's and the function that releases it.
template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

template <class T>
Owned<T> nothing() {
  return {nullptr, [](T*) {}};
}

/// What to call a library for the loader, which looks for a name without a slash in its own folders
/// alone: the path where it is a file here, else the name.
std::string library_name(const std::string& file);

class Runtime {
 public:
  /// Opens the library `file`; where that is empty, the first to be had of $CUDARELU_ORT_LIBRARY,
  /// the one that the build found, a Python environment's, and the loader's. Throws an Error where
  /// there is none, or an old one.
  explicit Runtime(const std::string& file);

  const OrtApi* operator->() const { return api_; }
  const OrtApiBase& base() const { return *base_; }
  const std::filesystem::path& library() const { return library_; }
  std::string version() const { return base_->GetVersionString(); }
  int minor() const { return minor_; }  // y of version 1.y.z

  /// Throws the status as an Error of one line.
  void check(OrtStatus* status) const;

 private:
  const OrtApiBase* base_ = nullptr;
  const OrtApi* api_ = nullptr;
  int minor_ = 0;
  std::filesystem::path library_;
};

}  // namespace cudarelu::cli

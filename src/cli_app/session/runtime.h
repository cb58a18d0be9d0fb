// ONNX Runtime, loaded at run time.
#pragma once

#include <onnxruntime_c_api.h>

#include <filesystem>
#include <memory>
#include <string>

namespace cudarelu::cli {

/// An object of ONNX Runtime, with the function that releases it.
template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

/// An Owned that holds no object yet.
template <class T>
Owned<T> no_object() {
  return {nullptr, [](T*) {}};
}

/// Returns the argument for dlopen(), which searches a name without a slash only in the loader's
/// folders: the absolute path if `file` has no slash and is in the current folder, else `file`.
std::string library_name(const std::string& file);

class Runtime {
 public:
  /// Loads the library `file`. If that is empty, loads $CUDARELU_ORT_LIBRARY or, if that is not
  /// set, the first that exists of: the library that the build found, that of a Python environment,
  /// and that of the loader. Throws an Error if there is none, or if it is too old.
  explicit Runtime(const std::string& file);

  const OrtApi* operator->() const { return api_; }
  const OrtApiBase& base() const { return *base_; }
  const std::filesystem::path& library() const { return library_; }
  std::string version() const { return base_->GetVersionString(); }
  int minor() const { return minor_; }  // y of version 1.y.z

  /// Throws an Error if the status is one, and releases it.
  void check(OrtStatus* status) const;

 private:
  const OrtApiBase* base_ = nullptr;
  const OrtApi* api_ = nullptr;
  int minor_ = 0;
  std::filesystem::path library_;
};

}  // namespace cudarelu::cli

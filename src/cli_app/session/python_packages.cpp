#include "session/python_packages.h"

#include <cstdlib>

namespace cudarelu::cli {

std::vector<std::filesystem::path> python_packages(const std::filesystem::path& onnx_runtime) {
  std::vector<std::filesystem::path> folders;
  // <packages>/onnxruntime/capi/libonnxruntime.so.<version>
  if (onnx_runtime.parent_path().filename() == "capi") {
    folders.push_back(onnx_runtime.parent_path().parent_path().parent_path());
  }
  std::vector<std::filesystem::path> environments;
  const char* active = std::getenv("VIRTUAL_ENV");
  if (active != nullptr && *active != '\0') environments.emplace_back(active);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && self.parent_path().filename() == "bin") {
    environments.push_back(self.parent_path().parent_path());
  }
  for (const auto& environment : environments) {
    for (const auto& part : std::filesystem::directory_iterator(environment / "lib", error)) {
      if (!part.path().filename().string().starts_with("python3.")) continue;
      for (const char* name : {"site-packages", "dist-packages"}) {
        if (std::filesystem::exists(part.path() / name, error)) {
          folders.push_back(part.path() / name);
        }
      }
    }
  }
  return folders;
}

}  // namespace cudarelu::cli

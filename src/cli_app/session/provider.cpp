#include "session/provider.h"

#include <dlfcn.h>

#include <array>
#include <string_view>

#include "error.h"
#include "session/cuda_driver.h"
#include "session/python_packages.h"

namespace cudarelu::cli {
namespace {

/// Loads the CUDA libraries of Python's packages. ONNX Runtime's provider does not search for them
/// there, but uses them once they are loaded.
void open_cuda_libraries(const std::filesystem::path& onnx_runtime) {
  // Each library needs some of those before it.
  constexpr std::array libraries{"libcudart.so.", "libnvJitLink.so.", "libcublasLt.so.",
                                 "libcublas.so.", "libcurand.so.",    "libcufft.so.",
                                 "libnvrtc.so.",  "libcudnn.so."};
  for (const auto& packages : python_packages(onnx_runtime)) {
    for (const char* library : libraries) {
      // The folder is nvidia/cu13/lib for CUDA 13, and nvidia/<package>/lib before.
      std::error_code error;
      for (const auto& part : std::filesystem::directory_iterator(packages / "nvidia", error)) {
        for (const auto& file : std::filesystem::directory_iterator(part.path() / "lib", error)) {
          // Ignores a failure: the provider reports a library that it needs.
          if (file.path().filename().string().starts_with(library)) {
            dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL);
          }
        }
      }
    }
  }
}

void add_cuda(const Runtime& runtime, OrtSessionOptions& options, const ProviderChoice& choice) {
  open_cuda_libraries(runtime.library());
  OrtCUDAProviderOptionsV2* created = nullptr;
  runtime.check(runtime->CreateCUDAProviderOptions(&created));
  const Owned<OrtCUDAProviderOptionsV2> cuda(created, runtime->ReleaseCUDAProviderOptions);
  const std::string device = std::to_string(choice.device);
  const std::array keys{"device_id", "enable_cuda_graph", "use_tf32"};
  const std::array values{device.c_str(), choice.cuda_graph ? "1" : "0", "0"};
  const std::size_t count = keys.size() - (runtime.minor() < 18 ? 1 : 0);  // use_tf32 needs 1.18
  runtime.check(runtime->UpdateCUDAProviderOptions(cuda.get(), keys.data(), values.data(), count));
  runtime.check(runtime->SessionOptionsAppendExecutionProvider_CUDA_V2(&options, cuda.get()));
}

/// Returns the part of a loader's error that names the missing library and how to provide it, or
/// the whole message if it is another error.
std::string what_is_missing(const std::string& message) {
  constexpr std::string_view error = ": cannot open shared object file";
  const std::size_t end = message.find(error);
  if (end == std::string::npos) return message;
  const std::size_t begin = message.find_last_of(" :", end - 1) + 1;
  const std::string missing = message.substr(begin, end + error.size() - begin);
  const bool driver = missing.starts_with("libcuda.so");
  return missing + (driver ? "; it comes with NVIDIA's driver"
                           : "; install it, or put its folder into LD_LIBRARY_PATH");
}

}  // namespace

Provider add_provider(const Runtime& runtime, OrtSessionOptions& options,
                      const ProviderChoice& choice) {
  const std::string option =
      choice.require_cuda ? "--require-provider cuda" : "--provider " + choice.name;
  if (choice.name == "cpu") {
    if (choice.require_cuda) throw Error(option + " contradicts --provider cpu");
    return {"cpu", ""};
  }
  const bool open = choice.name == "auto" && !choice.require_cuda;
  const int devices = count_cuda_devices();
  if (devices == 0 && open) return {"cpu", "no NVIDIA GPU"};
  if (devices > 0 && choice.device >= devices) {
    throw Error("--device " + std::to_string(choice.device) + ": this machine has " +
                std::to_string(devices) + " CUDA devices, numbered from 0");
  }
  try {
    add_cuda(runtime, options, choice);
  } catch (const Error& error) {
    const std::string reason = what_is_missing(error.what());
    if (open) return {"cpu", "the CUDA provider does not load: " + reason};
    throw Error(option + " is not available: " + reason);
  }
  return {"cuda", open ? "an NVIDIA GPU is present" : ""};
}

}  // namespace cudarelu::cli

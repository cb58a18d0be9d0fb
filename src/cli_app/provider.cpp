#include "provider.h"

#include <dlfcn.h>

#include <array>
#include <string_view>

#include "error.h"

namespace cudarelu::cli {
namespace {

/// Asks the driver, without making a context.
bool has_gpu() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return false;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count_devices = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int count = 0;
  return init != nullptr && count_devices != nullptr && init(0) == 0 &&
         count_devices(&count) == 0 && count > 0;
}

/// The provider's library has no path to the CUDA libraries that Python's packages carry. Where
/// ONNX Runtime is one of those packages they are opened first, and then found by their names.
void open_cuda_libraries(const std::filesystem::path& onnx_runtime) {
  constexpr std::array libraries{"cu13/lib/libcudart.so.13",   "cu13/lib/libnvJitLink.so.13",
                                 "cu13/lib/libcublasLt.so.13", "cu13/lib/libcublas.so.13",
                                 "cu13/lib/libcurand.so.10",   "cu13/lib/libcufft.so.12",
                                 "cu13/lib/libnvrtc.so.13",    "cudnn/lib/libcudnn.so.9"};
  // <packages>/onnxruntime/capi/libonnxruntime.so.<version>
  const auto packages = onnx_runtime.parent_path().parent_path().parent_path() / "nvidia";
  for (const char* library : libraries) {
    // One that is missing may not be needed; the provider names it if it is.
    dlopen((packages / library).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

void add_cuda(const Runtime& runtime, OrtSessionOptions& options) {
  open_cuda_libraries(runtime.library());
  OrtCUDAProviderOptionsV2* created = nullptr;
  runtime.check(runtime->CreateCUDAProviderOptions(&created));
  const Owned<OrtCUDAProviderOptionsV2> cuda(created, runtime->ReleaseCUDAProviderOptions);
  const char* key = "device_id";
  const char* value = "0";
  runtime.check(runtime->UpdateCUDAProviderOptions(cuda.get(), &key, &value, 1));
  runtime.check(runtime->SessionOptionsAppendExecutionProvider_CUDA_V2(&options, cuda.get()));
}

/// The library that an error of the loader names, or else the whole message.
std::string what_is_missing(const std::string& message) {
  constexpr std::string_view error = ": cannot open shared object file";
  const std::size_t end = message.find(error);
  if (end == std::string::npos) return message;
  const std::size_t begin = message.find_last_of(" :", end - 1) + 1;  // 0 where there is none
  const std::string missing = message.substr(begin, end + error.size() - begin);
  const bool driver = missing.starts_with("libcuda.so");
  return missing + (driver ? "; it comes with NVIDIA's driver"
                           : "; install it, or put its folder into LD_LIBRARY_PATH");
}

}  // namespace

Provider add_provider(const Runtime& runtime, OrtSessionOptions& options,
                      const std::string& wanted) {
  if (wanted == "cpu") return {"cpu", ""};
  const bool open = wanted == "auto";
  if (open && !has_gpu()) return {"cpu", "no NVIDIA GPU"};
  try {
    add_cuda(runtime, options);
  } catch (const Error& error) {
    const std::string reason = what_is_missing(error.what());
    if (open) return {"cpu", "the CUDA provider does not load: " + reason};
    throw Error("--provider cuda cannot be had: " + reason);
  }
  return {"cuda", open ? "an NVIDIA GPU is there" : ""};
}

}  // namespace cudarelu::cli

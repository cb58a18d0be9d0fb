#include "cuda/gemm/cublaslt_library.h"

#include <dlfcn.h>

#include <array>

namespace cudarelu::gpu {
namespace {

constexpr int versions_per_major = 10000;  // as cublasLtGetVersion() counts

/// A library of one of the names, or nullptr. A library that the process has loaded, PyTorch's or
/// ONNX Runtime's, comes first: a second one would take memory and time to load.
void* open_library(std::span<const std::string> names) {
  for (const int mode : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const std::string& name : names) {
      if (void* library = dlopen(name.c_str(), mode)) return library;
    }
  }
  return nullptr;
}

}  // namespace

CublasLt open_cublaslt(std::span<const std::string> names) {
  CublasLt result{};
  void* const library = open_library(names);
  if (library == nullptr) {
    result.problem =
        "cannot open cuBLASLt: " + std::string(dlerror()) +
        "; put the folder that has it on LD_LIBRARY_PATH: that of a CUDA toolkit's " +
        "libraries, or of the package nvidia-cublas==" + std::to_string(CUBLAS_VER_MAJOR) + ".*";
    return result;
  }
  const auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (function == nullptr && result.problem.empty()) {
      result.problem = "cannot use cuBLASLt: " + std::string(dlerror());
    }
  };
  find(result.version, "cublasLtGetVersion");
  find(result.describe, "cublasLtGetStatusString");
  find(result.create, "cublasLtCreate");
  find(result.init_product, "cublasLtMatmulDescInit_internal");
  find(result.set_product, "cublasLtMatmulDescSetAttribute");
  find(result.init_layout, "cublasLtMatrixLayoutInit_internal");
  find(result.set_layout, "cublasLtMatrixLayoutSetAttribute");
  find(result.init_preference, "cublasLtMatmulPreferenceInit_internal");
  find(result.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(result.heuristics, "cublasLtMatmulAlgoGetHeuristic");
  find(result.check, "cublasLtMatmulAlgoCheck");
  find(result.get_algorithm, "cublasLtMatmulAlgoConfigGetAttribute");
  find(result.multiply, "cublasLtMatmul");
  if (!result.problem.empty()) return result;
  const auto major = result.version() / versions_per_major;
  if (major != CUBLAS_VER_MAJOR) {
    result.problem = "cannot use cuBLASLt " + std::to_string(major) + ": this build is for " +
                     std::to_string(CUBLAS_VER_MAJOR) + "; build it with that CUDA toolkit";
  }
  return result;
}

const CublasLt& cublaslt() {
  static const CublasLt library = [] {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    const std::array names{name, "/usr/local/cuda/lib64/" + name};
    return open_cublaslt(names);
  }();
  return library;
}

}  // namespace cudarelu::gpu

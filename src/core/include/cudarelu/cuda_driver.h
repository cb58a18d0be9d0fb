// Functions of NVIDIA's driver, for readers, which do not need CUDA to be built.
#pragma once

#include <dlfcn.h>

namespace cudarelu {

/// A function of the driver, where F is its type in cuda.h; nullptr if the driver, which a host of
/// CUDA loads, is not in this process.
template <class F>
F* cuda_driver_function(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(driver, name));
}

}  // namespace cudarelu

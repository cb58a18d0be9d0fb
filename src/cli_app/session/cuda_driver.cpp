#include "session/cuda_driver.h"

#include <dlfcn.h>

#include <memory>
#include <string>

#include "error.h"

namespace cudarelu::cli {
namespace {

using Address = unsigned long long;  // CUdeviceptr

/// Returns a function of the driver, or nullptr. F is its type as in cuda.h, which is not included
/// so that the build needs no CUDA toolkit.
template <class F>
F* driver_function(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(driver, name));
}

/// Calls a function of the driver. Throws an Error that names the function if it fails.
template <class... Parameters, class... Arguments>
void call(const char* name, int (*function)(Parameters...), Arguments... arguments) {
  const int result = function == nullptr ? -1 : function(static_cast<Parameters>(arguments)...);
  if (result == 0) return;
  throw Error(std::string("CUDA driver: ") + name +
              (result < 0 ? " is missing" : " failed with error " + std::to_string(result)));
}

Address address_of(const void* device_memory) { return reinterpret_cast<Address>(device_memory); }

}  // namespace

int count_cuda_devices() {
  auto* const init = driver_function<int(unsigned)>("cuInit");
  auto* const count_devices = driver_function<int(int*)>("cuDeviceGetCount");
  int count = 0;
  if (init == nullptr || count_devices == nullptr || init(0) != 0 || count_devices(&count) != 0) {
    return 0;
  }
  return count;
}

CudaDevice::CudaDevice(int ordinal) {
  int device = 0;
  call("cuInit", driver_function<int(unsigned)>("cuInit"), 0);
  call("cuDeviceGet", driver_function<int(int*, int)>("cuDeviceGet"), &device, ordinal);
  call("cuDevicePrimaryCtxRetain", driver_function<int(void**, int)>("cuDevicePrimaryCtxRetain"),
       &context_, device);
}

void CudaDevice::enter() const {
  call("cuCtxSetCurrent", driver_function<int(void*)>("cuCtxSetCurrent"), context_);
}

std::shared_ptr<std::byte[]> CudaDevice::host_memory(std::size_t bytes) const {
  void* memory = nullptr;
  call("cuMemAllocHost", driver_function<int(void**, std::size_t)>("cuMemAllocHost_v2"), &memory,
       bytes == 0 ? 1 : bytes);
  return {static_cast<std::byte*>(memory), [context = context_](std::byte* memory) {
            if (auto* set = driver_function<int(void*)>("cuCtxSetCurrent")) set(context);
            if (auto* free = driver_function<int(void*)>("cuMemFreeHost")) free(memory);
          }};
}

void CudaDevice::to_device(void* to, const std::byte* from, std::size_t bytes) const {
  static auto* const copy =
      driver_function<int(Address, const void*, std::size_t)>("cuMemcpyHtoD_v2");
  if (bytes > 0) call("cuMemcpyHtoD", copy, address_of(to), from, bytes);
}

void CudaDevice::to_host(std::byte* to, const void* from, std::size_t bytes) const {
  static auto* const copy = driver_function<int(void*, Address, std::size_t)>("cuMemcpyDtoH_v2");
  if (bytes > 0) call("cuMemcpyDtoH", copy, to, address_of(from), bytes);
}

}  // namespace cudarelu::cli

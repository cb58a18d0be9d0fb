#include "cuda/device.h"
#include "cuda/launch.cuh"

namespace cudarelu::cuda {

namespace {

/// Compiled like every kernel here: for the same architectures.
__global__ void probe() {}

}  // namespace

bool is_compiled_for(int architecture, int device) {
  static DeviceNumbers<> architectures;
  int compiled = 0;
  const cudaError_t error = architectures.get(device, 0, compiled, [](int& number) {
    cudaFuncAttributes attributes{};  // of what the device runs, translated or not
    const cudaError_t error = cudaFuncGetAttributes(&attributes, probe);
    number = attributes.ptxVersion;
    return error;
  });
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess && compiled >= architecture;
}

Status run_on_device(const Call& call, Kernel kernel) {
  int previous = -1;
  if (Status status = check(call, cudaGetDevice(&previous)); !status.ok()) return status;
  const int device = call.execution.device_index;
  if (device == previous) return kernel(call);
  if (Status status = check(call, cudaSetDevice(device)); !status.ok()) return status;
  Status status = kernel(call);
  Status restored = check(call, cudaSetDevice(previous));
  if (!status.ok()) return status;
  return restored;
}

}  // namespace cudarelu::cuda

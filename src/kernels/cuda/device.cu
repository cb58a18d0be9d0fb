#include <algorithm>

#include "cuda/device.h"
#include "cuda/launch.cuh"

namespace cudarelu::cuda {

namespace {

/// Compiled for the same architectures as every kernel.
__global__ void probe() {}

}  // namespace

bool is_compiled_for(int architecture, int device) {
  static PerDevice<int> architectures;
  int compiled = 0;
  const cudaError_t error = architectures.get(device, 0, compiled, [](int& number) {
    cudaFuncAttributes attributes{};  // of the code that the device runs, translated or not
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

int count_resident(const Call& call, const void* kernel, const Grid& grid, int most_bytes) {
  const int device = call.execution.device_index;
  int number = 0;
  const auto count = [&] {
    cudaFuncAttributes attributes{};
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
    const int room = number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device) -
                     static_cast<int>(attributes.sharedSizeBytes);
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 std::min(room, most_bytes));
    if (error != cudaSuccess) return error;
    if (grid.cluster == 0) {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &number, kernel, static_cast<int>(grid.threads.x), grid.shared_bytes);
      number *= number_of<cudaDevAttrMultiProcessorCount>(device);
      return error;
    }
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
    return with_configuration(call, grid, [&](const cudaLaunchConfig_t& config) {
      return cudaOccupancyMaxActiveClusters(&number, kernel, &config);
    });
  };
  if (count() == cudaSuccess) return number;
  (void)cudaGetLastError();
  return 0;
}

}  // namespace cudarelu::cuda

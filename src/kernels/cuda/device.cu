#include <array>
#include <atomic>

#include "cuda/device.h"
#include "cuda/launch.cuh"

namespace cudarelu::cuda {

namespace {

/// Compiled like every kernel here: for the same architectures.
__global__ void probe() {}

/// The architecture that the kernels were compiled for, 90 for 9.0, of which the device runs them,
/// translated or not; 0 where that is not known.
int compiled_architecture() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, probe) == cudaSuccess) return attributes.ptxVersion;
  (void)cudaGetLastError();
  return 0;
}

}  // namespace

bool has_programmatic_launch(int device) {
  static std::array<std::atomic<int>, 64> architectures{};  // by device; 0: not asked yet
  const auto index = static_cast<std::size_t>(device);
  if (index >= architectures.size()) return compiled_architecture() >= 90;
  int architecture = architectures[index].load(std::memory_order_relaxed);
  if (architecture == 0) {
    architecture = compiled_architecture();
    architectures[index].store(architecture, std::memory_order_relaxed);
  }
  return architecture >= 90;
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

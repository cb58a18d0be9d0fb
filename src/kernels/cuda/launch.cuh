// The one way in which a kernel is launched.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "cuda/check.h"
#include "cudarelu/call.h"

namespace cudarelu::cuda {

/// Whether the kernels, as compiled for the device, which is current, are for `architecture` (90
/// for compute capability 9.0) or a later one. Code for an older one may run on a newer device.
bool is_compiled_for(int architecture, int device);

/// Whether the kernels wait for the kernel before them by themselves, and have clusters.
inline bool has_programmatic_launch(int device) { return is_compiled_for(90, device); }

/// Positive numbers that a device answers, `count` of them, each asked for once.
template <int count = 1>
class DeviceNumbers {
 public:
  /// The number at `index` of the device; `ask(number)` gives it the first time, or an error.
  template <class Ask>
  cudaError_t get(int device, int index, int& number, const Ask& ask) {
    if (device >= devices) return ask(number);
    std::atomic<int>& known = numbers_[static_cast<std::size_t>(device * count + index)];
    number = known.load(std::memory_order_relaxed);
    if (number > 0) return cudaSuccess;
    const cudaError_t error = ask(number);
    if (error == cudaSuccess) known.store(number, std::memory_order_relaxed);
    return error;
  }

 private:
  static constexpr int devices = 64;
  std::array<std::atomic<int>, static_cast<std::size_t>(devices) * count> numbers_{};
};

/// A positive number that the device answers, or -1.
template <cudaDeviceAttr attribute>
int number_of(int device) {
  static DeviceNumbers<> known;
  int value = 0;
  const cudaError_t error = known.get(device, 0, value, [&](int& number) {
    return cudaDeviceGetAttribute(&number, attribute, device);
  });
  if (error == cudaSuccess) return value;
  (void)cudaGetLastError();
  return -1;
}

/// Allows a kernel so much shared memory, which is the same for all its launches, on the call's
/// device.
template <auto kernel>
Status allow_shared_memory(const Call& call, int bytes) {
  static DeviceNumbers<> allowed;
  int known = 0;
  return check(call, allowed.get(call.execution.device_index, 0, known, [&](int& number) {
    number = bytes;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }));
}

/// Waits for the kernel before this one on the stream, which may still be running: a kernel that
/// launch() starts calls this before it touches global memory.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the kernel after this one start as soon as all blocks of this one have called it or ended,
/// so that it is ready when this one ends. Its blocks take room meanwhile: measure whether it pays.
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// How many blocks of how many threads. `cluster` blocks in a row share their shared memory: up to
/// 8, or 16 where kernel and device allow it, and only where the device has programmatic launches;
/// 0: the kernel knows no clusters.
struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;  // asked for at the launch
  unsigned cluster = 0;
};

/// Gives `use` the configuration of a launch on the call's stream. Where the device can, the launch
/// overlaps with the end of the kernel before, which saves about 0.3 us a call.
template <class Use>
cudaError_t with_configuration(const Call& call, const Grid& grid, const Use& use) {
  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {grid.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = static_cast<cudaStream_t>(call.execution.stream);
  config.attrs = attributes.data();
  const bool modern = has_programmatic_launch(call.execution.device_index);
  config.numAttrs = modern ? (grid.cluster > 0 ? 2 : 1) : 0;
  return use(config);
}

/// Puts a kernel on the call's stream.
template <class... Parameters>
Status launch(const Call& call, void (*kernel)(Parameters...), const Grid& grid,
              std::type_identity_t<Parameters>... arguments) {
  const auto start = [&](const cudaLaunchConfig_t& config) {
    return cudaLaunchKernelEx(&config, kernel, arguments...);
  };
  return check(call, with_configuration(call, grid, start));
}

/// ceil(n / size)
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

/// The same as a grid dimension; with blocks of 128 elements or more, n up to 2^38 fits.
inline unsigned blocks_for(std::int64_t n, std::int64_t size) {
  return static_cast<unsigned>(ceil_div(n, size));
}

}  // namespace cudarelu::cuda

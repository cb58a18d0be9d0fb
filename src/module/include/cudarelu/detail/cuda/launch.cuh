// The launch of kernels: all go through launch().
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cudarelu/call.h"
#include "cudarelu/detail/cuda/capture.h"
#include "cudarelu/detail/cuda/device.h"

namespace cudarelu::gpu {

/// Compiled for the same architectures as every kernel of the module.
template <class>
__global__ void probe() {}

/// The architecture (90 for compute capability 9.0) for which the kernels were compiled that the
/// current device runs; 0 if there are none. A new device may run code for an old architecture.
inline int compiled_architecture(int device) {
  static PerDevice<int> architectures;
  int compiled = 0;
  const cudaError_t error = architectures.get(device, 0, compiled, [](int& number) {
    cudaFuncAttributes attributes{};  // of the code that the device runs, translated or not
    const cudaError_t error = cudaFuncGetAttributes(&attributes, probe<void>);
    number = attributes.ptxVersion;
    return error;
  });
  if (error == cudaSuccess) return compiled;
  (void)cudaGetLastError();
  return 0;
}

/// Whether it is `architecture` or a later one.
inline bool is_compiled_for(int architecture, int device) {
  return compiled_architecture(device) >= architecture;
}

/// Whether kernels can call wait_for_previous_kernel() and run in clusters.
inline bool has_programmatic_launch(int device) { return is_compiled_for(90, device); }

/// The same for `kernel`, whose `allowed` is set.
inline Status allow_shared_memory(const Call& call, const void* kernel, int bytes,
                                  PerDevice<int>& allowed) {
  int known = 0;
  return check(call, allowed.get(call.execution.device_index, 0, known, [&](int& number) {
    number = bytes;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }));
}

/// Allows a kernel `bytes` of shared memory on the call's device, in each call the same number.
template <auto kernel>
Status allow_shared_memory(const Call& call, int bytes) {
  static PerDevice<int> allowed;
  return allow_shared_memory(call, reinterpret_cast<const void*>(kernel), bytes, allowed);
}

/// Waits for the previous kernel on the stream, which may still run. Every kernel for launch()
/// calls this before it accesses global memory.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start when all blocks of this one have called it or ended, so that it is
/// ready when this one ends. Its blocks take resources meanwhile: measure whether it is faster.
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// The size of a launch. `cluster` consecutive blocks can access each other's shared memory: up to
/// 8, or 16 if kernel and device allow it, and only if has_programmatic_launch(). 0: no clusters.
struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 0;
};

/// Calls `use` with the configuration of a launch on the call's stream. If the device supports it,
/// the launch overlaps with the end of the previous kernel, which saves about 0.3 us per call.
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

/// Launches a kernel, whose arguments these pointers name, on the call's stream. Not inlined: it
/// would take most of the time to compile the host code of a file with many kernels.
[[gnu::noinline]] inline Status launch_at(const Call& call, const void* kernel, const Grid& grid,
                                          void** arguments) {
  const auto start = [&](const cudaLaunchConfig_t& config) {
    return cudaLaunchKernelExC(&config, kernel, arguments);
  };
  return check(call, with_configuration(call, grid, start));
}

/// Launches a kernel on the call's stream.
template <class... Parameters>
Status launch(const Call& call, void (*kernel)(Parameters...), const Grid& grid,
              std::type_identity_t<Parameters>... arguments) {
  void* pointers[] = {&arguments..., nullptr};
  return launch_at(call, reinterpret_cast<const void*>(kernel), grid, pointers);
}

/// Sets the number of blocks, or of clusters if the grid has them, that the current device runs at
/// the same time; 0 if it cannot run one. Allows the kernel up to `max_bytes` of shared memory.
/// Fails only where a later call may succeed.
inline cudaError_t count_resident(const Call& call, const void* kernel, const Grid& grid,
                                  int max_bytes, int& number) {
  const RelaxedCapture relaxed;  // may load the kernel
  const int device = call.execution.device_index;
  const auto count = [&] {
    cudaFuncAttributes attributes{};
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
    const int room = number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device) -
                     static_cast<int>(attributes.sharedSizeBytes);
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 std::min(room, max_bytes));
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
  const cudaError_t error = count();
  if (error == cudaSuccess) return error;
  (void)cudaGetLastError();
  number = 0;
  return error == cudaErrorMemoryAllocation ? error : cudaSuccess;
}

/// The same, but asks the driver, which is slow, once for each `kind` in [0, kinds). Grids of one
/// kind have the same threads, shared memory and cluster.
template <auto kernel, int kinds>
int resident(const Call& call, const Grid& grid, int kind, int max_bytes) {
  static PerDevice<int, kinds> numbers;
  int number = 0;
  (void)numbers.get(call.execution.device_index, kind, number, [&](int& found) {
    return count_resident(call, reinterpret_cast<const void*>(kernel), grid, max_bytes, found);
  });
  return number;
}

/// ceil(n / size)
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

/// The most blocks of a grid in the dimension x.
inline constexpr std::int64_t largest_grid = std::numeric_limits<std::int32_t>::max();

/// The same as a grid dimension: for blocks of 128 elements or more, n may be up to 2^38. A grid of
/// more than `largest_grid` is an error of the launch.
inline unsigned blocks_for(std::int64_t n, std::int64_t size) {
  return static_cast<unsigned>(std::min(ceil_div(n, size), largest_grid + 1));
}

}  // namespace cudarelu::gpu

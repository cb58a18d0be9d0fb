// The one way in which a kernel is launched.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <type_traits>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cudarelu/call.h"

namespace cudarelu::cuda {

/// Allows a kernel so much shared memory, which is the same for all its launches, on the call's
/// device.
template <auto kernel>
Status allow_shared_memory(const Call& call, int bytes) {
  static PerDevice<int> allowed;
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

/// How many blocks, or clusters, of the grid the current device runs at a time; 0 where it cannot.
/// A launch may ask for up to `most_bytes` of shared memory, or for what the device has.
int count_resident(const Call& call, const void* kernel, const Grid& grid, int most_bytes);

/// The same. The driver takes long to answer, and is asked once for each `kind` of grid, of which
/// there are `kinds`.
template <auto kernel, int kinds>
int resident(const Call& call, const Grid& grid, int kind, int most_bytes) {
  static PerDevice<int, kinds> numbers;
  int number = 0;
  (void)numbers.get(call.execution.device_index, kind, number, [&](int& found) {
    found = count_resident(call, reinterpret_cast<const void*>(kernel), grid, most_bytes);
    return cudaSuccess;
  });
  return number;
}

/// ceil(n / size)
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

/// The same as a grid dimension; with blocks of 128 elements or more, n up to 2^38 fits.
inline unsigned blocks_for(std::int64_t n, std::int64_t size) {
  return static_cast<unsigned>(ceil_div(n, size));
}

}  // namespace cudarelu::cuda

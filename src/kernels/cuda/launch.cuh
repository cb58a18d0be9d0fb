// The one way in which a kernel is launched.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "cudarelu/call.h"

namespace cudarelu::cuda {

/// The status of a CUDA call; clears the error, so that the host's next call does not meet it.
inline Status check(const Call& call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {error == cudaErrorMemoryAllocation ? Status::Code::out_of_memory
                                             : Status::Code::device_failure,
          std::string(call.op.name) + ": CUDA: " + cudaGetErrorString(error) + " (" +
              cudaGetErrorName(error) + ")"};
}

/// Whether the kernels, as compiled for the device, which is current, wait for the kernel before
/// them by themselves: from compute capability 9.0 on. Code for an older one may run on a newer
/// device.
bool has_programmatic_launch(int device);

/// Waits for the kernel before this one on the stream, which may still be running: a kernel that
/// launch() starts calls this before it touches global memory.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Puts a kernel on the call's stream. Where the device can, the launch overlaps with the end of
/// the kernel before, which saves about 0.3 us a call.
template <class... Parameters>
Status launch(const Call& call, void (*kernel)(Parameters...), dim3 grid, dim3 block,
              std::size_t shared_bytes, std::type_identity_t<Parameters>... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(call.execution.stream);
  config.attrs = &attribute;
  config.numAttrs = has_programmatic_launch(call.execution.device_index) ? 1 : 0;
  return check(call, cudaLaunchKernelEx(&config, kernel, arguments...));
}

/// ceil(n / size) as a grid dimension; with blocks of 128 elements or more, n up to 2^38 fits.
inline unsigned blocks_for(std::int64_t n, std::int64_t size) {
  return static_cast<unsigned>((n + size - 1) / size);
}

}  // namespace cudarelu::cuda

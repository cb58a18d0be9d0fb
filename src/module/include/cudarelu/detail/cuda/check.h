// The result of a CUDA call as a Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cudarelu/call.h"

namespace cudarelu::gpu {

/// The Status of an error, which it clears, so that the host's next call does not return it.
[[gnu::cold, gnu::noinline]] inline Status failure(const Call& call, cudaError_t error) {
  (void)cudaGetLastError();
  return {error == cudaErrorMemoryAllocation ? Status::Code::out_of_memory
                                             : Status::Code::device_failure,
          std::string(call.op) + ": CUDA: " + cudaGetErrorString(error) + " (" +
              cudaGetErrorName(error) + ")"};
}

/// The Status of a CUDA call.
inline Status check(const Call& call, cudaError_t error) {
  return error == cudaSuccess ? Status() : failure(call, error);
}

}  // namespace cudarelu::gpu

// The result of a CUDA call as a Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cudarelu/call.h"

namespace cudarelu::cuda {

/// The Status of a CUDA call. Clears the error, so that the host's next call does not return it.
inline Status check(const Call& call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {error == cudaErrorMemoryAllocation ? Status::Code::out_of_memory
                                             : Status::Code::device_failure,
          std::string(call.op) + ": CUDA: " + cudaGetErrorString(error) + " (" +
              cudaGetErrorName(error) + ")"};
}

}  // namespace cudarelu::cuda

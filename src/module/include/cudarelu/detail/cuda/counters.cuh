// Counters in global memory that the blocks of a kernel share.
#pragma once

#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/workspace.h"

namespace cudarelu::gpu {

/// One block sets one counter for each of its threads.
static __global__ void reset_counters(unsigned* counters) {
  wait_for_previous_kernel();
  counters[threadIdx.x] = 0;
}

/// Sets `counters` to `count` counters, up to 1,024, which are 0 when the next kernel of the call
/// starts.
inline Status allocate_counters(const Call& call, unsigned count, unsigned*& counters) {
  if (Status status = allocate(call, count, counters); !status.ok()) return status;
  return launch(call, reset_counters, {1, count}, counters);
}

}  // namespace cudarelu::gpu

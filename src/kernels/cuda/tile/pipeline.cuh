// Rings of stages in shared memory that the copy engine fills and warpgroups read, on compute
// capability 9.0.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace cudarelu::gpu {

namespace ptx = ::cuda::ptx;

/// A position in a ring of stages, and the parity of the number of rounds.
template <int stages>
struct PipelineState {
  int stage = 0;
  unsigned parity = 0;

  __device__ void advance(int by = 1) {
    stage += by;
    parity ^= static_cast<unsigned>(stage / stages) & 1;
    stage %= stages;
  }
};

__device__ __forceinline__ void wait(std::uint64_t* barrier, unsigned parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

/// Announces copies of that many bytes.
__device__ __forceinline__ void expect(std::uint64_t* barrier, int bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                 bytes);
}

/// Releases the operands of products for which a warpgroup has waited.
__device__ __forceinline__ void release(std::uint64_t* barrier) {
  if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(barrier);
}

}  // namespace cudarelu::gpu

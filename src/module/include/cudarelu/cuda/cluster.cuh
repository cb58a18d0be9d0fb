// The shared memory of the other blocks of a cluster. Blocks without a cluster, and those of
// devices that have none, are a cluster of one block.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>
#endif

namespace cudarelu::cuda {

/// Tells the cluster that this thread is here; wait_for_cluster() must follow before the next call.
__device__ __forceinline__ void arrive_at_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cooperative_groups::cluster_group::barrier_arrive();
#endif
}

/// Waits until all threads of the cluster have arrived, and sees what they wrote before. All blocks
/// have started then, so that their shared memory may be accessed.
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cooperative_groups::cluster_group::barrier_wait();
#else
  __syncthreads();
#endif
}

/// What `own` is in the shared memory of block `rank` of the cluster, which must not have ended.
template <class T>
__device__ __forceinline__ T* of_cluster(T* own, [[maybe_unused]] int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return cooperative_groups::cluster_group::map_shared_rank(own, rank);
#else
  return own;
#endif
}

}  // namespace cudarelu::cuda

// The shared memory of the other blocks of a cluster. Blocks without a cluster, and those of
// devices that have none, are a cluster of one block.
//
// These functions call what cooperative_groups::cluster_group calls: its header takes a second to
// compile.
#pragma once

namespace cudarelu::gpu {

/// The number of blocks of the cluster.
__device__ __forceinline__ unsigned blocks_of_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return __clusterSizeInBlocks();
#else
  return 1;
#endif
}

/// The number of this block in the cluster.
__device__ __forceinline__ unsigned rank_in_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return __clusterRelativeBlockRank();
#else
  return 0;
#endif
}

/// Tells the cluster that this thread is here; wait_for_cluster() must follow before the next call.
__device__ __forceinline__ void arrive_at_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
#endif
}

/// Waits until all threads of the cluster have arrived, and sees what they wrote before. All blocks
/// have started then, so that their shared memory may be accessed.
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __cluster_barrier_wait();
#else
  __syncthreads();
#endif
}

/// What `own` is in the shared memory of block `rank` of the cluster, which must not have ended.
template <class T>
__device__ __forceinline__ T* of_cluster(T* own, [[maybe_unused]] int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(own, rank));
#else
  return own;
#endif
}

}  // namespace cudarelu::gpu

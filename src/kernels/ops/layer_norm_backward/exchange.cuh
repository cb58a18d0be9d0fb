// Which threads have which rows, and how they exchange what they know of them.
#pragma once

#include "cuda/alignment.h"
#include "ops/layer_norm_backward/sums.cuh"

#if __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>

#include <cuda/ptx>
#endif

namespace cudarelu::ops::layer_norm_gradient {

#if __CUDA_ARCH__ >= 900
namespace ptx = ::cuda::ptx;
#endif

/// How rows are divided: `lanes` threads of a warp have a row, or, for 0, all threads of the block
/// or cluster; each has `vectors` vectors of it. `whole`: each vector is of one row.
template <class T, bool whole_, int lanes_, int vectors_, bool cluster_ = false>
struct Layout {
  static constexpr bool whole = whole_;
  static constexpr int lanes = lanes_;
  static constexpr int vectors = vectors_;
  static constexpr int width = cuda::vector_bytes / sizeof(T);
  static constexpr bool cluster = cluster_;
  static constexpr bool large = vectors * width >= 32;  // takes all registers that there are
  // 576: rows of 50,257 float32 fit clusters of 6, which leave fewest multiprocessors idle.
  static constexpr int most_threads = lanes != 0 ? 256 : whole || large || !cluster ? 512 : 576;
  static constexpr int least_blocks = lanes != 0 ? 2 : 1;             // on a multiprocessor
  static constexpr int rows = lanes != 0 ? most_threads / lanes : 1;  // of a block at a time
  static constexpr int stages = 3;                                    // rows in shared memory

  /// Of blocks of `threads`.
  static constexpr int shared_bytes(int threads) {
    return stages * vectors * 2 * threads * cuda::vector_bytes;
  }
};

inline constexpr int most_blocks = 16;  // of a cluster, where the device has them

/// Exchanges the sums of warps that have a row together: of two rows at a time, since each sends
/// those of the next row before it receives those of this one.
template <class T, class Layout>
class Exchange {
  using C = Compute<T>;
  static constexpr int most_warps = Layout::most_threads / 32;
  // One by the most elements of a warp: by that, its mean is near enough that little cancels.
  static constexpr C share_of_warp = C(1) / (32 * Layout::vectors * Layout::width);

 public:
  /// `count`: of the block's elements of a row.
  __device__ explicit Exchange(C count) : count_(count) {
#if __CUDA_ARCH__ >= 900
    if constexpr (Layout::cluster) {
      if (threadIdx.x == 0) {
        for (int i = 0; i < turns; ++i) ptx::mbarrier_init(barrier(i), 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
      }
      Cluster::sync();
    }
#endif
  }

  /// Gives the sums of this warp to the others; `turn` counts the rows.
  __device__ void send(int turn, const Sums<C>& of_warp) const {
    if (threadIdx.x % 32 == 0) of_warps(turn)[threadIdx.x / 32] = of_warp;
#if __CUDA_ARCH__ >= 900
    if constexpr (Layout::cluster) {
      __syncthreads();
      if (threadIdx.x >= 32) return;
      Sums<C> of_block = add_up(of_warps(turn), blockDim.x / 32, share_of_warp);
      of_block.count = count_;
      const unsigned blocks = Cluster::num_blocks();
      if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared,
                                       barrier(turn),
                                       blocks * static_cast<unsigned>(sizeof(Sums<C>)));
      }
      if (threadIdx.x >= blocks) return;
      constexpr int words = sizeof(Sums<C>) / sizeof(std::int64_t);
      auto* const to = reinterpret_cast<std::int64_t*>(
          Cluster::map_shared_rank(of_blocks(turn) + Cluster::block_rank(), threadIdx.x));
      const auto* const from = reinterpret_cast<const std::int64_t*>(&of_block);
#pragma unroll
      for (int i = 0; i < words; ++i) {
        ptx::st_async(to + i, from[i], Cluster::map_shared_rank(barrier(turn), threadIdx.x));
      }
    }
#endif
  }

  /// The sums of the row.
  __device__ Sums<C> receive(int turn) const {
#if __CUDA_ARCH__ >= 900
    if constexpr (Layout::cluster) {
      while (!ptx::mbarrier_try_wait_parity(barrier(turn), turn / turns % 2)) {
      }
      return add_up(of_blocks(turn), Cluster::num_blocks(), 0);
    }
#endif
    __syncthreads();
    return add_up(of_warps(turn), blockDim.x / 32, share_of_warp);
  }

 private:
  /// Who sends the sums of a row has those of the row before the last from everybody, who had then
  /// read those of the row two before that.
  static constexpr int turns = 4;

  /// Of up to 32 parts of a row, about base + share * d of the first; but the count.
  __device__ static Sums<C> add_up(const Sums<C>* parts, unsigned count, C share) {
    Sums<C> sums{cuda::fused(parts[0].d, share, parts[0].base), 0};
    const C base = sums.base;
    if (threadIdx.x % 32 < count) sums = parts[threadIdx.x % 32];
    sums.move_to(base);
    sums.template add_lanes<32>();
    return sums;
  }
  __device__ static Sums<C>* of_warps(int turn) {
    __shared__ Sums<C> sums[turns][most_warps];
    return sums[turn % turns];
  }
#if __CUDA_ARCH__ >= 900
  using Cluster = cooperative_groups::cluster_group;
  __device__ static Sums<C>* of_blocks(int turn) {
    __shared__ Sums<C> sums[turns][most_blocks];
    return sums[turn % turns];
  }
  __device__ static std::uint64_t* barrier(int turn) {
    __shared__ std::uint64_t barriers[turns];
    return &barriers[turn % turns];
  }
#endif

  C count_;
};

}  // namespace cudarelu::ops::layer_norm_gradient

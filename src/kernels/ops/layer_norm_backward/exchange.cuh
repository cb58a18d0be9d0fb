// Which threads have which rows, and how they exchange what they know of them.
#pragma once

#include "cuda/alignment.h"
#include "ops/layer_norm_backward/sums.cuh"

#if __CUDA_ARCH__ >= 800
#include <cooperative_groups.h>

#include <cuda/ptx>
#endif

namespace cudarelu::ops::layer_norm_gradient {

inline constexpr int most_blocks = 16;  // of a cluster, where the device has them

/// How rows are divided: `lanes` threads of a warp have a row, or, for 0, all threads of the block
/// or cluster but those of the last warps; each has `vectors` vectors of it. `edges`: rows may
/// begin or end within a vector. `most`: of the threads that have vectors, where two blocks shall
/// fit on a multiprocessor; 0: as many as one has registers for.
template <class T, int lanes_, int vectors_, bool edges_ = false, bool cluster_ = false,
          int most = 0>
struct Layout {
  static constexpr int lanes = lanes_;
  static constexpr int vectors = vectors_;
  static constexpr bool edges = edges_;
  static constexpr bool cluster = cluster_;
  static constexpr int width = cuda::vector_bytes / sizeof(T);
  static constexpr bool large = vectors * width >= 32;  // takes all registers that there are
  static constexpr int others = lanes == 0 ? 32 : 0;    // threads of a block without vectors
  // A large one has 128 registers if there are 16 warps, with the last. 544: rows of 50,257 float32
  // fit clusters of 6.
  static constexpr int most_workers = most != 0    ? most
                                      : lanes != 0 ? 256
                                      : !cluster   ? 512
                                      : large      ? 480
                                                   : 544;
  static constexpr int most_threads = most_workers + others;
  static constexpr int least_blocks = lanes != 0 || most != 0 ? 2 : 1;  // on a multiprocessor
  static constexpr int rows = lanes != 0 ? most_threads / lanes : 1;    // of a block at a time
  static constexpr int stages = 3;                                      // rows in shared memory

  /// Of blocks with so many threads that have vectors.
  static constexpr int shared_bytes(int workers) {
    return stages * vectors * 2 * workers * cuda::vector_bytes;
  }
};

#if __CUDA_ARCH__ >= 800

namespace ptx = ::cuda::ptx;

/// How the warps of a block or cluster that have a row together learn its sums: each gives those of
/// its part to the block's last warp, which adds them up, exchanges them with the other blocks and
/// says what the gradient is computed by. Nobody waits for a row but for its sums; each gives those
/// of the next row before it asks for this one's.
template <class C, class Layout>
class Exchange {
 public:
  /// For all threads of the block.
  __device__ explicit Exchange(int warps) : warps_(warps) {
    if constexpr (Layout::lanes != 0) return;
    if (threadIdx.x == 0) {
      for (int i = 0; i < turns; ++i) {
        ptx::mbarrier_init(&shared().summed[i], warps);
        ptx::mbarrier_init(&shared().exchanged[i], 1);
        ptx::mbarrier_init(&shared().ready[i], 1);
      }
#if __CUDA_ARCH__ >= 900
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
#endif
    }
#if __CUDA_ARCH__ >= 900
    if constexpr (Layout::cluster) {
      Cluster::sync();
      return;
    }
#endif
    __syncthreads();
  }

  /// Gives the sums of this warp; `turn` counts the rows.
  __device__ void send(int turn, const Sums<C>& of_warp) const {
    const unsigned lane = threadIdx.x % 32;
    if (lane != 0) return;
    shared().of_warps[turn % turns][threadIdx.x / 32] = of_warp;
    (void)ptx::mbarrier_arrive(&shared().summed[turn % turns]);
  }

  /// What the gradient of the row is computed by.
  __device__ RowGradient<C> receive(int turn) const {
    wait(shared().ready, turn);
    return shared().gradients[turn % turns];
  }

  /// In the last warp: the gradient of a row, of the sums of the warps and of single elements
  /// besides: of those lanes that have one. `count`: of the block's elements.
  __device__ RowGradient<C> combine(int turn, C count, C columns, bool has_element, C x, C g,
                                    C eps) const {
    wait(shared().summed, turn);
    Sums<C> sums = add_up(shared().of_warps[turn % turns], warps_, count, has_element, x, g);
#if __CUDA_ARCH__ >= 900
    if constexpr (Layout::cluster) {
      send_to_blocks(turn, sums);
      wait(shared().exchanged, turn);
      sums = add_up(shared().of_blocks[turn % turns], Cluster::num_blocks(), columns, false, 0, 0);
    }
#endif
    const RowGradient<C> gradient(sums, 1 / columns, eps);
    if (threadIdx.x % 32 == 0) {
      shared().gradients[turn % turns] = gradient;
      (void)ptx::mbarrier_arrive(&shared().ready[turn % turns]);
    }
    return gradient;
  }

 private:
  /// Who gives the sums of a row has those of the row before the last, of everybody, who had then
  /// read those of the row before that.
  static constexpr int turns = 4;

  struct Shared {
    Sums<C> of_warps[turns][Layout::most_workers / 32];
    Sums<C> of_blocks[turns][most_blocks];
    RowGradient<C> gradients[turns];
    std::uint64_t summed[turns];
    std::uint64_t exchanged[turns];
    std::uint64_t ready[turns];
  };
  __device__ static Shared& shared() {
    __shared__ alignas(Shared) unsigned char bytes[sizeof(Shared)];
    return *reinterpret_cast<Shared*>(bytes);
  }

  __device__ static void wait(std::uint64_t (&barriers)[turns], int turn) {
#if __CUDA_ARCH__ >= 900
    while (!ptx::mbarrier_try_wait_parity(&barriers[turn % turns], turn / turns % 2)) {
    }
#else
    while (!ptx::mbarrier_test_wait_parity(&barriers[turn % turns], turn / turns % 2)) {
    }
#endif
  }

  /// Of up to 32 parts of a row, and an element of each lane that has one, `count` elements, about
  /// their mean: nothing cancels that did not in a part.
  __device__ static Sums<C> add_up(const Sums<C>* parts, unsigned number, C count, bool has_element,
                                   C x, C g) {
    Sums<C> sums{};
    if (threadIdx.x % 32 < number) sums = parts[threadIdx.x % 32];
    const C total = cuda::fused(sums.count, sums.base, sums.d) + (has_element ? x : C(0));
    sums.move_to(count > 0 ? cuda::rough_quotient(cuda::sum_in_warp(total), count) : C(0));
    if (has_element) sums.add(x, g);
    sums.template add_lanes<32>();
    sums.count = count;
    return sums;
  }

#if __CUDA_ARCH__ >= 900
  using Cluster = cooperative_groups::cluster_group;

  /// The stores complete the barrier.
  __device__ static void send_to_blocks(int turn, const Sums<C>& of_block) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned blocks = Cluster::num_blocks();
    std::uint64_t* const barrier = &shared().exchanged[turn % turns];
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                     blocks * static_cast<unsigned>(sizeof(Sums<C>)));
    }
    if (lane >= blocks) return;
    constexpr int words = sizeof(Sums<C>) / sizeof(std::int64_t);
    Sums<C>* const place = &shared().of_blocks[turn % turns][Cluster::block_rank()];
    auto* const to = reinterpret_cast<std::int64_t*>(Cluster::map_shared_rank(place, lane));
    const auto* const from = reinterpret_cast<const std::int64_t*>(&of_block);
#pragma unroll
    for (int i = 0; i < words; ++i) {
      ptx::st_async(to + i, from[i], Cluster::map_shared_rank(barrier, lane));
    }
  }
#endif

  int warps_;  // that have vectors
};

#else

/// Never launched: has what the kernels name.
template <class C, class Layout>
struct Exchange {
  __device__ explicit Exchange(int) {}
  __device__ void send(int, const Sums<C>&) const {}
  __device__ RowGradient<C> receive(int) const { return {{}, 0, 0}; }
  __device__ RowGradient<C> combine(int, C, C, bool, C, C, C) const { return {{}, 0, 0}; }
};

#endif

}  // namespace cudarelu::ops::layer_norm_gradient

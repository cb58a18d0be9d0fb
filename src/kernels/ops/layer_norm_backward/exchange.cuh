// How rows are distributed to threads, and how warps and blocks exchange the sums of a row.
#pragma once

#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/cluster.cuh"
#include "ops/layer_norm_backward/sums.cuh"

#if __CUDA_ARCH__ >= 800
#include <cuda/ptx>
#endif

namespace cudarelu::ops::layer_norm_gradient {

inline constexpr int max_blocks = 16;  // in a cluster, if the device supports it

/// How rows are distributed. `lanes` threads of a warp have a row; 0: the threads of a block or
/// cluster have one, except the last warp of each block. Each thread has `vectors` vectors of
/// `bytes` bytes of the row. `edges`: rows may begin or end within a vector. `most`: the most
/// threads that have vectors, for two blocks on a multiprocessor; 0: as many as one block has
/// registers for. Example: Layout<float, 16, 2> is for rows of up to 16 * 2 vectors, 128 columns; a
/// block of 256 threads has 16 rows at a time.
template <class T, int lanes_, int vectors_, bool edges_ = false, bool cluster_ = false,
          int most = 0, int bytes = gpu::vector_bytes>
struct Layout {
  static constexpr int lanes = lanes_;
  static constexpr int vectors = vectors_;
  static constexpr bool edges = edges_;
  static constexpr bool cluster = cluster_;
  static constexpr int vector_bytes = bytes;
  static constexpr int width = bytes / sizeof(T);
  static constexpr bool large = vectors * width >= 32;  // takes all registers
  static constexpr int others = lanes == 0 ? 32 : 0;    // threads of a block without vectors
  // A thread of a large layout has 128 registers if a block has 16 warps, with the last one. With
  // 544 threads, rows of 50,257 float32 fit clusters of 6.
  static constexpr int max_workers = most != 0    ? most
                                     : lanes != 0 ? 256
                                     : !cluster   ? 512
                                     : large      ? 480
                                                  : 544;
  static constexpr int max_threads = max_workers + others;
  static constexpr int min_blocks = lanes != 0 || most != 0 ? 2 : 1;  // on a multiprocessor
  static constexpr int rows = lanes != 0 ? max_threads / lanes : 1;   // of a block at a time
  static constexpr int stages = 3;                                    // rows in shared memory

  /// For blocks with so many threads that have vectors.
  static constexpr int shared_bytes(int workers) {
    return stages * vectors * 2 * workers * vector_bytes;
  }
};

#if __CUDA_ARCH__ >= 800

namespace ptx = ::cuda::ptx;

/// The exchange of the sums of a row between the warps of a block or cluster. Each warp sends the
/// sums of its part to the last warp of the block. That one adds them up, exchanges them with the
/// other blocks, and returns the RowGradient to the warps. A warp sends the sums of the next row
/// before it receives the gradient of this one, so that the exchange happens while it computes.
/// Example: a warp calls send(0), send(1), receive(0), send(2), receive(1), send(3), ..., and the
/// last warp calls combine(0), combine(1), combine(2), ...
template <class C, class Layout>
class Exchange {
 public:
  /// All threads of the block call this.
  __device__ explicit Exchange(int warps) : warps_(warps) {
    if constexpr (Layout::lanes != 0) return;
    if (threadIdx.x == 0) {
      for (int i = 0; i < slots; ++i) {
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
      gpu::arrive_at_cluster();
      gpu::wait_for_cluster();
      return;
    }
#endif
    __syncthreads();
  }

  /// Sends the sums of this warp; `iteration` counts the rows.
  __device__ void send(int iteration, const Sums<C>& of_warp) const {
    const unsigned lane = threadIdx.x % 32;
    if (lane != 0) return;
    shared().of_warps[iteration % slots][threadIdx.x / 32] = of_warp;
    (void)ptx::mbarrier_arrive(&shared().summed[iteration % slots]);
  }

  /// Waits for the gradient of the row.
  __device__ RowGradient<C> receive(int iteration) const {
    wait(shared().ready, iteration);
    return shared().gradients[iteration % slots];
  }

  /// For the last warp: the gradient of a row from the sums of the warps and an element of each
  /// lane that has one. `count` is the number of elements of the block.
  __device__ RowGradient<C> combine(int iteration, C count, C columns, bool has_element, C x, C g,
                                    C eps) const {
    wait(shared().summed, iteration);
    Sums<C> sums = add_up(shared().of_warps[iteration % slots], warps_, count, has_element, x, g);
#if __CUDA_ARCH__ >= 900
    if constexpr (Layout::cluster) {
      if (gpu::blocks_of_cluster() > 1) {
        send_to_blocks(iteration, sums);
        wait(shared().exchanged, iteration);
        sums = add_up(shared().of_blocks[iteration % slots], gpu::blocks_of_cluster(), columns,
                      false, 0, 0);
      }
    }
#endif
    const RowGradient<C> gradient(sums, 1 / columns, eps);
    if (threadIdx.x % 32 == 0) {
      shared().gradients[iteration % slots] = gradient;
      (void)ptx::mbarrier_arrive(&shared().ready[iteration % slots]);
    }
    return gradient;
  }

 private:
  /// The slots for sums and gradients. Four are enough: a warp that sends row 4 to the slot of
  /// row 0 has received row 2. For that all warps had sent row 2, each after it had received row 0.
  static constexpr int slots = 4;

  struct Shared {
    Sums<C> of_warps[slots][Layout::max_workers / 32];
    Sums<C> of_blocks[slots][max_blocks];
    RowGradient<C> gradients[slots];
    std::uint64_t summed[slots];
    std::uint64_t exchanged[slots];
    std::uint64_t ready[slots];
  };
  __device__ static Shared& shared() {
    __shared__ alignas(Shared) unsigned char bytes[sizeof(Shared)];
    return *reinterpret_cast<Shared*>(bytes);
  }

  __device__ static void wait(std::uint64_t (&barriers)[slots], int iteration) {
#if __CUDA_ARCH__ >= 900
    while (!ptx::mbarrier_try_wait_parity(&barriers[iteration % slots], iteration / slots % 2)) {
    }
#else
    while (!ptx::mbarrier_test_wait_parity(&barriers[iteration % slots], iteration / slots % 2)) {
    }
#endif
  }

  /// Adds up to 32 parts of a row and an element of each lane that has one: `count` elements. The
  /// base is their mean, so that there is no more cancellation than in the parts.
  __device__ static Sums<C> add_up(const Sums<C>* parts, unsigned number, C count, bool has_element,
                                   C x, C g) {
    Sums<C> sums{};
    if (threadIdx.x % 32 < number) sums = parts[threadIdx.x % 32];
    const C share = count > 0 ? gpu::rough_quotient(C(1), count) : C(0);
    // As in Moments::of_lanes: relative to the base of the first part.
    const C half = C(0.5) * sums.base;
    const C first = __shfl_sync(0xffffffffu, half, 0);
    const C element = has_element ? (C(0.5) * x - first) * (2 * share) : C(0);
    const C apart = gpu::sum_in_warp(
        gpu::fused(2 * sums.count * share, half - first, gpu::fused(sums.d, share, element)));
    sums.move_to(gpu::fused(C(2), first, apart));
    if (has_element) sums.add(x, g);
    sums.template add_lanes<32>();
    sums.count = count;
    return sums;
  }

#if __CUDA_ARCH__ >= 900
  /// Sends the sums of this block to all blocks. The stores complete the barrier.
  __device__ static void send_to_blocks(int iteration, const Sums<C>& of_block) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned blocks = gpu::blocks_of_cluster();
    std::uint64_t* const barrier = &shared().exchanged[iteration % slots];
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                     blocks * static_cast<unsigned>(sizeof(Sums<C>)));
    }
    if (lane >= blocks) return;
    constexpr int words = sizeof(Sums<C>) / sizeof(std::int64_t);
    Sums<C>* const slot = &shared().of_blocks[iteration % slots][gpu::rank_in_cluster()];
    auto* const to = reinterpret_cast<std::int64_t*>(gpu::of_cluster(slot, lane));
    const auto* const from = reinterpret_cast<const std::int64_t*>(&of_block);
#pragma unroll
    for (int i = 0; i < words; ++i) {
      ptx::st_async(to + i, from[i], gpu::of_cluster(barrier, lane));
    }
  }
#endif

  int warps_;  // that have vectors
};

#else

/// Never launched; the kernels compile with it.
template <class C, class Layout>
struct Exchange {
  __device__ explicit Exchange(int) {}
  __device__ void send(int, const Sums<C>&) const {}
  __device__ RowGradient<C> receive(int) const { return {{}, 0, 0}; }
  __device__ RowGradient<C> combine(int, C, C, bool, C, C, C) const { return {{}, 0, 0}; }
};

#endif

}  // namespace cudarelu::ops::layer_norm_gradient

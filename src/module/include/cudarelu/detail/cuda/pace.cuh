// Persistent blocks that keep pace with one another.
#pragma once

#include <bit>

#include "cudarelu/detail/cuda/counters.cuh"

namespace cudarelu::gpu {

/// PacedSteps of a kernel whose blocks run at the same time and have equal numbers of turns in a
/// loop. Where memory is the limit, multiprocessors get different shares of it: on an H100, blocks
/// with equal numbers of rows ended after 158 to 303 us. So a block waits before each step until
/// the blocks are, on average, at most a quarter of a step behind it. Meanwhile the slower ones
/// have the bandwidth. Nothing but the time depends on it.
struct Pace {
  unsigned* begun = nullptr;  // the steps of all blocks, or nullptr: blocks do not wait
  int turns = 1;              // of a step, a power of two

  /// For one warp, all of whose threads call begin() for the turns of the block: 0, 1, 2, ...
  class PacedSteps {
   public:
    __device__ explicit PacedSteps(const Pace& pace) : pace_(pace) {}

    /// Called before each turn. `counts` is true in exactly one thread of the block.
    __device__ void begin(int turn, bool counts) {
      if (pace_.begun == nullptr) return;
      const int in_step = turn & (pace_.turns - 1);
      if (in_step == 0) {
        const auto blocks = static_cast<int>(gridDim.x);
        const int least = turn / pace_.turns * blocks - blocks / 4;
        // If another kernel occupies multiprocessors, some blocks may not run yet. Then the warp
        // waits in vain, but with these PacedSteps only once.
        for (int looks = 0; looks < max_looks_ && seen_ < least; ++looks) look();
        if (seen_ < least) max_looks_ = 0;
        if (counts) {
          asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(pace_.begun) : "memory");
        }
      }
      // A turn ahead, so that the next step need not wait for the number.
      if (in_step == pace_.turns - 1) look();
    }

   private:
    __device__ void look() {
      asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];"
                   : "=r"(seen_)
                   : "l"(pace_.begun)
                   : "memory");
    }

    const Pace& pace_;
    int seen_ = 0;
    int max_looks_ = 32;  // about 20 us
  };
};

/// The peak bandwidth of the memory for each multiprocessor, where 1 is that of an H100, 25 GB/s.
/// An H200 has 1.47. A little more than 1 is 1, since steps are measured in whole turns.
inline double relative_bandwidth(int device) {
  const double kilohertz = number_of<cudaDevAttrMemoryClockRate>(device);  // two transfers each
  const double bits = number_of<cudaDevAttrGlobalMemoryBusWidth>(device);
  const double bytes_per_second = 2000 * kilohertz * bits / 8;
  const double ratio =
      bytes_per_second / number_of<cudaDevAttrMultiProcessorCount>(device) / (3352e9 / 132);
  return ratio > 1.2 ? ratio : 1;
}

/// Sets `pace` for the next kernel of the call, whose blocks have `turns` turns, in each of which
/// they read `bytes` of an input. A step is at least `step` bytes on an H100, and takes as long on
/// other devices: in shorter ones, blocks wait for the count. With fewer than 16 steps they do not
/// wait, since the gain would be less than the cost of another kernel, which resets the count.
inline Status set_pace(const Call& call, std::int64_t turns, std::int64_t bytes, int step,
                       Pace& pace) {
  const int device = call.execution.device_index;
  if (!has_programmatic_launch(device)) return {};  // older ones: not measured
  const auto bytes_of_step = static_cast<std::int64_t>(step * relative_bandwidth(device));
  const unsigned of_step = std::bit_ceil(blocks_for(bytes_of_step, bytes));
  if (turns < std::int64_t{16} * of_step) return {};
  pace.turns = static_cast<int>(of_step);
  return allocate_counters(call, 1, pace.begun);
}

}  // namespace cudarelu::gpu

// Persistent blocks that keep pace with one another.
#pragma once

#include <algorithm>
#include <bit>

#include "cudarelu/cuda/counters.cuh"

namespace cudarelu::cuda {

/// Steps of a kernel whose blocks run at the same time and have equal numbers of turns in a loop.
/// Where memory is the limit, multiprocessors get different shares of it: on an H100, blocks with
/// equal numbers of rows ended after 158 to 303 us. So a block waits before each step until the
/// blocks are, on average, at most a quarter of a step behind it. Meanwhile the slower ones have
/// the bandwidth. Nothing but the time depends on it.
struct Pace {
  unsigned* begun = nullptr;  // the steps of all blocks, or nullptr: blocks do not wait
  int turns = 1;              // of a step, a power of two

  /// For one warp, all of whose threads call begin() for the turns of the block: 0, 1, 2, ...
  class Steps {
   public:
    __device__ explicit Steps(const Pace& pace) : pace_(pace) {}

    /// Called before each turn. `counts` is true in exactly one thread of the block.
    __device__ void begin(int turn, bool counts) {
      if (pace_.begun == nullptr) return;
      const int in_step = turn & (pace_.turns - 1);
      if (in_step == 0) {
        const auto blocks = static_cast<int>(gridDim.x);
        const int least = turn / pace_.turns * blocks - blocks / 4;
        // If another kernel occupies multiprocessors, some blocks may not run yet. Then the warp
        // waits in vain, but with these Steps only once.
        for (int looks = 0; looks < most_looks_ && seen_ < least; ++looks) look();
        if (seen_ < least) most_looks_ = 0;
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
    int most_looks_ = 32;  // about 20 us
  };
};

/// Sets `pace` for the next kernel of the call, whose blocks have `turns` turns, in each of which
/// they read `bytes` of an input. `by_warps`: each warp of a block waits; else one waits for all.
/// With fewer than 16 steps they do not wait, since the gain would be less than the cost of another
/// kernel, which resets the count.
inline Status set_pace(const Call& call, std::int64_t turns, std::int64_t bytes, bool by_warps,
                       Pace& pace) {
  if (!has_programmatic_launch(call.execution.device_index)) return {};  // older ones: not measured
  const unsigned least =
      by_warps ? std::max(blocks_for(16384, bytes), 2u) : blocks_for(8192, bytes);
  const unsigned of_step = std::bit_ceil(least);
  if (turns < std::int64_t{16} * of_step) return {};
  pace.turns = static_cast<int>(of_step);
  return allocate_counters(call, 1, pace.begun);
}

}  // namespace cudarelu::cuda

// Packed sequences on CUDA. The offsets are not checked: what is found there is limited to the
// tensors.
//
// The host does not know the offsets, so it starts a block for each of tile_slots(), which are
// enough for the tiles of all sequences. A sequence from `begin` on has number `i` and the slots
// from begin / tile + i on. If the rows of several heads share tiles, `begin` counts all of them.
#pragma once

#include "cudarelu/detail/workspace.h"
#include "ops/attention/cuda.cuh"

namespace cudarelu::ops::attention {

/// A batch within the rows.
__device__ inline Batch in_order(const Batch& batch) {
  const std::int64_t end = max(batch.end, std::int64_t{0});
  return {min(max(batch.begin, std::int64_t{0}), end), end};
}

/// What the kernels of the gradient have in a workspace; C is the type of lse.
template <class C>
struct PackedWorkspace {
  C* lse = nullptr;                // in an order of their own
  std::int32_t* q_ends = nullptr;  // by order_offsets()
  std::int32_t* k_ends = nullptr;

  Status allocate(const Call& call, std::int64_t numbers, std::int64_t sequences) {
    if (Status status = cudarelu::allocate(call, numbers, lse); !status.ok()) return status;
    if (Status status = cudarelu::allocate(call, 2 * sequences, q_ends); !status.ok()) {
      return status;
    }
    k_ends = q_ends + sequences;
    return {};
  }

  Sequences ordered(const Sequences& given) const { return {q_ends, k_ends, given.count}; }
};

/// Copies offsets so that they do not decrease and are within the rows; for a block.
template <int threads>
__device__ void order_ends(const std::int32_t* ends, int sequences, int rows, std::int32_t* to) {
  __shared__ int largest[threads];
  const int thread = static_cast<int>(threadIdx.x);
  const int share = (sequences + threads - 1) / threads;
  const int first = min(thread * share, sequences);
  const int last = min(first + share, sequences);
  int end = 0;
  for (int i = first; i < last; ++i) end = max(end, min(ends[i], rows));
  largest[thread] = end;
  __syncthreads();
  end = 0;
  for (int i = 0; i < thread; ++i) end = max(end, largest[i]);
  for (int i = first; i < last; ++i) to[i] = end = max(end, min(ends[i], rows));
  __syncthreads();
}

/// The same for the offsets of q and k. With them no block waits for one that does not exist.
template <int threads, class C>
__device__ void order_offsets(const Sequences& sequences, int queries, int keys,
                              const PackedWorkspace<C>& to) {
  const auto count = static_cast<int>(sequences.count);
  order_ends<threads>(sequences.q_ends, count, queries, to.q_ends);
  order_ends<threads>(sequences.k_ends, count, keys, to.k_ends);
}

/// The slots for the tiles of `rows` rows; those past the last offset count as a sequence.
inline std::int64_t tile_slots(std::int64_t rows, std::int64_t sequences, int tile) {
  return rows / tile + sequences + 1;
}

/// The first slot of a sequence.
template <int tile>
__device__ std::int64_t slot_of(int number, const std::int32_t* ends, std::int64_t rows,
                                std::int64_t heads = 1) {
  const std::int64_t begin = number == 0 ? 0 : ends[number - 1];
  return min(max(begin, std::int64_t{0}), rows) * heads / tile + number;
}

/// A tile of a sequence: its rows are those from `first` on of all `heads` heads, one after the
/// other. The number of the rows past the last offset is the number of sequences. If a slot has no
/// tile, `first` is not in the sequence.
struct PackedTile {
  int number;
  Batch sequence;
  std::int64_t first;

  __device__ bool exists(std::int64_t heads = 1) const {
    return first >= 0 && first < (sequence.end - sequence.begin) * heads;
  }
};

/// The tile of a slot; for a warp.
template <int tile>
__device__ PackedTile find_tile(int slot, const std::int32_t* ends, int sequences,
                                std::int64_t rows, std::int64_t heads = 1) {
  // The sequences before the one looked for are `low` at least and `high` at most.
  int low = 0;
  int high = sequences;
  while (low < high) {
    const int step = (high - low + 31) / 32;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int own = min(low + (lane + 1) * step, high) - 1;
    const bool is_before = slot_of<tile>(own + 1, ends, rows, heads) <= slot;
    const int before = __popc(__ballot_sync(~0u, is_before));
    high = before == 32 ? high : min(low + (before + 1) * step, high) - 1;
    low = min(low + before * step, high);
  }
  const std::int64_t last = sequences == 0 ? 0 : ends[sequences - 1];
  const Batch sequence = in_order(low < sequences ? batch_of(low, ends, rows) : Batch{last, rows});
  return {low, sequence, (slot - slot_of<tile>(low, ends, rows, heads)) * tile};
}

/// The keys of a sequence, which are none past the last offset.
__device__ inline Batch keys_of(int number, const Sequences& sequences, std::int64_t keys) {
  if (number == sequences.count) return {0, 0};
  return in_order(batch_of(number, sequences.k_ends, keys));
}

/// Copies a kernel's arguments to shared memory, for `threads` threads.
template <int threads, class T>
__device__ void copy_words(const T& from, T& to, unsigned thread) {
  static_assert(sizeof(T) % sizeof(unsigned) == 0);
  for (unsigned i = thread; i < sizeof(T) / sizeof(unsigned); i += threads) {
    reinterpret_cast<unsigned*>(&to)[i] = reinterpret_cast<const unsigned*>(&from)[i];
  }
}

}  // namespace cudarelu::ops::attention

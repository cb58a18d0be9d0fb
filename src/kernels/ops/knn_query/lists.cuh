// Lists of the nearest points so far. All have the same result: the first k Neighbours.
#pragma once

#include "ops/knn_query/call.cuh"

namespace cudarelu::ops {

/// A sorted list of up to 32 * rows items in the registers of a warp: item i is in row i / 32 of
/// lane i % 32. Candidates wait in shared memory until one merge inserts 32 of them.
template <class C, int rows>
class RegisterList {
 public:
  static constexpr int storage = 64;  // fewer than 32 that wait, and 32 new ones
  static __host__ __device__ std::size_t shared_bytes(int /*nsample*/) {
    return storage * sizeof(Neighbour<C>);
  }

  __device__ RegisterList(void* shared, int nsample, int lane)
      : waiting_(static_cast<Neighbour<C>*>(shared)), lane_(lane), skip_(32 * rows - nsample) {
    // Padding is at the front, so that the last item is the farthest for every nsample.
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const bool pad = row * 32 + lane < skip_;
      items_[row] = pad ? Neighbour<C>::before_all() : Neighbour<C>::none();
    }
    farthest_ = shuffle(items_[rows - 1], 31);
  }

  __device__ const Neighbour<C>& farthest() const { return farthest_; }

  /// Each lane offers one candidate.
  __device__ void offer(const Neighbour<C>& candidate) {
    const bool nearer = candidate < farthest_;
    const unsigned lanes = __ballot_sync(all_lanes, nearer);
    if (lanes == 0) return;
    if (nearer) waiting_[count_ + __popc(lanes & ((1u << lane_) - 1))] = candidate;
    count_ += __popc(lanes);
    if (count_ >= 32) take_in();
  }

  template <class S>
  __device__ void write(const Results<S>& results, std::int64_t query) {
    take_in();
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const int rank = row * 32 + lane_ - skip_;
      if (rank >= 0) results.write(query, rank, items_[row]);
    }
  }

 private:
  __device__ void take_in() {
    __syncwarp();
    Neighbour<C> fresh = lane_ < count_ ? waiting_[lane_] : Neighbour<C>::none();
    count_ = count_ > 32 ? count_ - 32 : 0;
    if (lane_ < count_) waiting_[lane_] = waiting_[32 + lane_];
    __syncwarp();
    fresh = sort_lanes_descending(fresh, lane_);
    // `fresh` is descending and the last row is ascending: the smaller ones of the pairs are the
    // first 32 of both, and with the rows before they are a bitonic sequence.
    if (fresh < items_[rows - 1]) items_[rows - 1] = fresh;
    merge_bitonic_rows();
    farthest_ = shuffle(items_[rows - 1], 31);
  }

  __device__ void merge_bitonic_rows() {
    merge_bitonic(items_);
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) {
#pragma unroll
      for (int row = 0; row < rows; ++row) {
        items_[row] = exchange_lanes(items_[row], stride, (lane_ & stride) == 0);
      }
    }
  }

  Neighbour<C>* waiting_;
  int lane_;
  int skip_;
  int count_ = 0;
  Neighbour<C> items_[rows];
  Neighbour<C> farthest_;
};

/// A list of a warp in shared memory, of any length, into which candidates are inserted one by one.
template <class C>
class SharedList {
 public:
  static __host__ __device__ std::size_t shared_bytes(int nsample) {
    return static_cast<std::size_t>(nsample) * sizeof(Neighbour<C>);
  }

  __device__ SharedList(void* shared, int nsample, int lane)
      : items_(static_cast<Neighbour<C>*>(shared)), lane_(lane), size_(nsample) {
    for (int i = lane; i < size_; i += 32) items_[i] = Neighbour<C>::none();
    __syncwarp();
  }

  __device__ const Neighbour<C>& farthest() const { return farthest_; }

  __device__ void offer(const Neighbour<C>& candidate) {
    for (unsigned nearer = __ballot_sync(all_lanes, candidate < farthest_); nearer != 0;
         nearer &= nearer - 1) {
      const Neighbour<C> next = shuffle(candidate, __ffs(static_cast<int>(nearer)) - 1);
      if (next < farthest_) insert(next);
    }
  }

  template <class S>
  __device__ void write(const Results<S>& results, std::int64_t query) {
    for (int i = lane_; i < size_; i += 32) results.write(query, i, items_[i]);
  }

 private:
  /// Moves the items after the candidate up by one, beginning at the end.
  __device__ void insert(const Neighbour<C>& candidate) {
    for (int base = (size_ - 1) / 32 * 32; base >= 0; base -= 32) {
      const int at = base + lane_;
      const bool moves = at < size_ && candidate < items_[at];
      const bool shifts = moves && at > 0 && candidate < items_[at - 1];
      const Neighbour<C> item = shifts ? items_[at - 1] : candidate;
      __syncwarp();
      if (moves) items_[at] = item;
      __syncwarp();
      if (!__any_sync(all_lanes, shifts && lane_ == 0)) break;  // inserted in this part
    }
    farthest_ = items_[size_ - 1];
  }

  Neighbour<C>* items_;
  int lane_;
  int size_;
  Neighbour<C> farthest_ = Neighbour<C>::none();
};

}  // namespace cudarelu::ops

// A candidate for the result, and the networks that put candidates in order.
#pragma once

#include <cstdint>
#include <limits>

namespace cudarelu::ops {

inline constexpr unsigned all_lanes = 0xffffffffu;

/// A point at a squared distance.
template <class C>
struct Neighbour {
  C distance;
  std::int32_t index;

  /// What stands for no point; points that are infinitely far come after it, and do not count.
  static __device__ Neighbour none() {
    constexpr C infinity = std::numeric_limits<C>::infinity();
    return {infinity, -1};
  }
  /// What comes before every point.
  static __device__ Neighbour before_all() { return {C(-1), -1}; }
};

/// The order of the results: nearer, or equally near and of a lower index. False for a NaN.
template <class C>
__device__ bool operator<(const Neighbour<C>& a, const Neighbour<C>& b) {
  return a.distance < b.distance || (a.distance == b.distance && a.index < b.index);
}

template <class C>
__device__ Neighbour<C> shuffle(const Neighbour<C>& mine, int lane) {
  return {__shfl_sync(all_lanes, mine.distance, lane), __shfl_sync(all_lanes, mine.index, lane)};
}

/// Puts two in order.
template <class C>
__device__ void exchange(Neighbour<C>& a, Neighbour<C>& b) {
  const bool ordered = a < b;
  const Neighbour<C> first = ordered ? a : b;
  b = ordered ? b : a;
  a = first;
}

/// The one of two lanes' that this lane keeps: the smaller, or the larger.
template <class C>
__device__ Neighbour<C> exchange_lanes(const Neighbour<C>& mine, int lane_mask, bool smaller) {
  const Neighbour<C> other{__shfl_xor_sync(all_lanes, mine.distance, lane_mask),
                           __shfl_xor_sync(all_lanes, mine.index, lane_mask)};
  return (mine < other) == smaller ? mine : other;
}

/// Sorts a thread's items if they are bitonic (rising and then falling, or a rotation of that).
template <int size, class C>
__device__ void merge_bitonic(Neighbour<C> (&items)[size]) {
#pragma unroll
  for (int stride = size / 2; stride > 0; stride /= 2) {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if ((i & stride) == 0) exchange(items[i], items[i | stride]);
    }
  }
}

/// Sorts a thread's items.
template <int size, class C>
__device__ void sort(Neighbour<C> (&items)[size]) {
#pragma unroll
  for (int length = 2; length <= size; length *= 2) {
#pragma unroll
    for (int stride = length / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int i = 0; i < size; ++i) {
        if ((i & stride) != 0) continue;
        if ((i & length) == 0) {
          exchange(items[i], items[i | stride]);
        } else {
          exchange(items[i | stride], items[i]);
        }
      }
    }
  }
}

/// Sorts the items of a warp's lanes, the last one first.
template <class C>
__device__ Neighbour<C> sort_lanes_descending(Neighbour<C> mine, int lane) {
#pragma unroll
  for (int length = 2; length <= 32; length *= 2) {
#pragma unroll
    for (int stride = length / 2; stride > 0; stride /= 2) {
      mine = exchange_lanes(mine, stride, ((lane & stride) == 0) == ((lane & length) != 0));
    }
  }
  return mine;
}

}  // namespace cudarelu::ops

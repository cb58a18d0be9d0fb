// A candidate for the result, and sorting networks for candidates.
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

  /// No point. Points at an infinite distance come after it, and are ignored.
  static __device__ Neighbour none() {
    constexpr C infinity = std::numeric_limits<C>::infinity();
    return {infinity, -1};
  }
  /// Comes before every point.
  static __device__ Neighbour before_all() { return {C(-1), -1}; }
};

/// The order of the results: by distance, then by index. False for a NaN.
template <class C>
__device__ bool operator<(const Neighbour<C>& a, const Neighbour<C>& b) {
  return a.distance < b.distance || (a.distance == b.distance && a.index < b.index);
}

template <class C>
__device__ Neighbour<C> shuffle(const Neighbour<C>& mine, int lane) {
  return {__shfl_sync(all_lanes, mine.distance, lane), __shfl_sync(all_lanes, mine.index, lane)};
}

/// The bits of the distance in the upper half, and the index in the lower half. Since the order of
/// floats that are not negative is that of their bits, keys have the order of results.
using NeighbourKey = std::uint64_t;
inline constexpr NeighbourKey no_key = 0x7f800000ffffffffu;
inline constexpr NeighbourKey key_before_all = 0xbf80000000000000u;  // for is_before() alone

__device__ inline NeighbourKey neighbour_key(float distance, std::int32_t index) {
  return NeighbourKey{__float_as_uint(distance)} << 32 | static_cast<std::uint32_t>(index);
}
__device__ inline float distance_of(NeighbourKey key) {
  return __uint_as_float(static_cast<unsigned>(key >> 32));
}
__device__ inline Neighbour<float> neighbour_of(NeighbourKey key) {
  return {distance_of(key), static_cast<std::int32_t>(key)};
}

/// Keys have the order of the doubles with the same bits, none of which is a NaN. Doubles compare
/// in one instruction.
__device__ inline bool is_before(NeighbourKey a, NeighbourKey b) {
  return __longlong_as_double(static_cast<long long>(a)) <
         __longlong_as_double(static_cast<long long>(b));
}
template <class C>
__device__ bool is_before(const Neighbour<C>& a, const Neighbour<C>& b) {
  return a < b;
}

/// Sorts two items.
template <class Item>
__device__ void exchange(Item& a, Item& b) {
  const bool ordered = is_before(a, b);
  const Item first = ordered ? a : b;
  b = ordered ? b : a;
  a = first;
}
__device__ inline void exchange(float& a, float& b) {
  const float first = fminf(a, b);
  b = fmaxf(a, b);
  a = first;
}

/// The smaller or the larger of the items of two lanes, as this lane is to keep.
template <class C>
__device__ Neighbour<C> exchange_lanes(const Neighbour<C>& mine, int lane_mask, bool smaller) {
  const Neighbour<C> other{__shfl_xor_sync(all_lanes, mine.distance, lane_mask),
                           __shfl_xor_sync(all_lanes, mine.index, lane_mask)};
  return (mine < other) == smaller ? mine : other;
}

/// Sorts a thread's bitonic items: ascending and then descending, or a rotation of that.
template <int size, class Item>
__device__ void merge_bitonic(Item (&items)[size]) {
#pragma unroll
  for (int stride = size / 2; stride > 0; stride /= 2) {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if ((i & stride) == 0) exchange(items[i], items[i | stride]);
    }
  }
}

/// Sorts a thread's items with Batcher's merge exchange.
template <int size, class Item>
__device__ void sort(Item (&items)[size]) {
#pragma unroll
  for (int length = 1; length < size; length *= 2) {
#pragma unroll
    for (int stride = length; stride > 0; stride /= 2) {
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const int first = stride % length;  // of the items that are compared
        const bool is_first = i >= first && (i - first) / stride % 2 == 0;
        const bool of_one = i + stride < size && i / (2 * length) == (i + stride) / (2 * length);
        if (is_first && of_one) exchange(items[i], items[i + stride]);
      }
    }
  }
}

/// Sorts the items of the lanes of a warp, the last one first.
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

// Tiles: points in shared memory, among which a warp finds the neighbours of several queries.
//
// Each lane has several groups of points, and computes the least distance of each group. The k-th
// of the least distances of the lanes is a bound: the k-th nearest point is not farther. For 16
// neighbours about 22 points are within the bound, for any number of points; only these are sorted.
#pragma once

#include "ops/knn_query/tree.cuh"

namespace cudarelu::ops {

inline constexpr int max_tile_neighbours = 24;  // for more, a bound from 32 lanes is too loose

/// The shape of a search: a warp has `queries` queries at the same time, a tile has up to `points`
/// points, a lane has up to `groups` groups of these, and a multiprocessor has `blocks` blocks.
template <int warps_, int queries_, int groups_, int points_, int blocks_>
struct TileConfig {
  static constexpr int warps = warps_;
  static constexpr int queries = queries_;
  static constexpr int groups = groups_;
  static constexpr int points = points_;
  static constexpr int blocks = blocks_;

  /// log2 of the rows of a group, in a tile of `rows` rows of 32 points.
  static __device__ int group_bits(int rows) {
    int bits = 2;  // at least 4, which are processed together
    while (groups << bits < rows) ++bits;
    return bits;
  }
};

/// The nearest points of a query so far, up to k, and up to 32 new candidates.
class KeyList {
 public:
  static constexpr int step = 8;                  // keys that are compared at a time
  static constexpr int storage = 32 + 32 + step;  // that wait, new ones, and no_key

  __device__ KeyList(NeighbourKey* keys, int k, int lane) : keys_(keys), k_(k), lane_(lane) {}

  /// Continues with the keys that save() wrote.
  __device__ void resume(const NeighbourKey* saved) {
    const NeighbourKey key = lane_ < k_ ? saved[lane_] : no_key;
    count_ = __popc(__ballot_sync(all_lanes, key < no_key));
    keys_[lane_] = key;
    __syncwarp();
  }
  /// Writes the k nearest in order. If there are fewer, does not write the other elements.
  __device__ void save(NeighbourKey* saved) { sort(saved); }

  /// Each lane offers a key, or none.
  __device__ void offer(bool offers, NeighbourKey key) {
    const unsigned lanes = __ballot_sync(all_lanes, offers);
    if (offers) keys_[count_ + __popc(lanes & ((1u << lane_) - 1))] = key;
    count_ += __popc(lanes);
    if (count_ > 32) sort(keys_);
  }

 private:
  /// Writes the first k at their ranks.
  __device__ void sort(NeighbourKey* to) {
    if (lane_ < step) keys_[count_ + lane_] = no_key;
    __syncwarp();
    if (count_ > 32) {
      write_sorted<2>(to);
    } else {
      write_sorted<1>(to);
    }
    count_ = min(count_, k_);
    __syncwarp();
  }

  /// Each lane has a key in each of `rows` rows, and counts the keys before it. No two are equal.
  template <int rows>
  __device__ void write_sorted(NeighbourKey* to) {
    NeighbourKey mine[rows];
    int rank[rows] = {};
#pragma unroll
    for (int row = 0; row < rows; ++row) mine[row] = keys_[row * 32 + lane_];
    const auto* const pairs = reinterpret_cast<const ulonglong2*>(keys_);
#pragma unroll 1
    for (int i = 0; i < count_; i += step) {
#pragma unroll
      for (int j = 0; j < step / 2; ++j) {
        const ulonglong2 pair = pairs[i / 2 + j];
#pragma unroll
        for (int row = 0; row < rows; ++row) {
          rank[row] += static_cast<int>(is_before(pair.x, mine[row]));
          rank[row] += static_cast<int>(is_before(pair.y, mine[row]));
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      if (row * 32 + lane_ < count_ && rank[row] < k_) to[rank[row]] = mine[row];
    }
  }

  NeighbourKey* keys_;
  int k_;
  int lane_;
  int count_ = 0;
};

/// Sorts each row of values over the lanes of the warp.
template <int rows>
__device__ void sort_lanes(float (&values)[rows], int lane) {
#pragma unroll
  for (int length = 2; length <= 32; length *= 2) {
#pragma unroll
    for (int stride = length / 2; stride > 0; stride /= 2) {
      const int partner = stride == length / 2 ? length - 1 : stride;  // merges with a reversed one
      const bool first = (lane & stride) == 0;
#pragma unroll
      for (float& value : values) {
        const float other = __shfl_xor_sync(all_lanes, value, partner);
        if ((other < value) == first) value = other;
      }
    }
  }
}

/// The shared memory of a warp for the search of a tile.
template <class TileConfig>
struct alignas(16) TileStorage {
  NeighbourKey keys[KeyList::storage];
  float least[TileConfig::queries][TileConfig::groups][32];
  float reaches[TileConfig::queries];  // farther points are not needed
};

/// The squared distance except for its last bits, in fewer instructions.
__device__ inline float rough_distance(const float* a, const float* b) {
  const float x = a[0] - b[0];
  const float y = a[1] - b[1];
  const float z = a[2] - b[2];
  return fmaf(z, z, fmaf(y, y, x * x));
}

/// An upper bound of the rough distance of points whose squared distance is at most `distance`, and
/// the other way round: they differ by less than seven roundings, or by 2^-147 if these are
/// subnormal. At most the largest finite number.
__device__ inline float beyond_rounding(float distance) {
  return fminf(fmaf(distance, 0x1p-20f, distance) + 0x1p-140f, std::numeric_limits<float>::max());
}

/// Searches `rows` rows of 32 points, which are whole groups of 2^bits rows, for the neighbours of
/// the queries at `at` whose bits are set in `wanted`. Each query has k keys in `lists`, of what
/// was found before; they are updated.
template <class TileConfig>
__device__ void search_tile(const Point<float>* tile, int rows, int bits, const Point<float>* at,
                            unsigned wanted, NeighbourKey* lists, int k,
                            TileStorage<TileConfig>& storage) {
  constexpr float most = std::numeric_limits<float>::max();
  const int lane = threadIdx.x % 32;
  const int size = rows * 32;

  float mine[TileConfig::queries][3];
  float bounds[TileConfig::queries];
#pragma unroll
  for (int q = 0; q < TileConfig::queries; ++q) {
    const Point<float> query = at[q];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) mine[q][axis] = query.at[axis];
    bounds[q] = most;
  }
#pragma unroll 1
  for (int group = 0; group < TileConfig::groups; ++group) {
    // No query reaches a group without rows.
    const float start = group << bits < rows ? most : std::numeric_limits<float>::infinity();
    float least[TileConfig::queries];
#pragma unroll
    for (float& distance : least) distance = start;
    const int end = min((group + 1) << bits, rows);
#pragma unroll 1
    for (int row = group << bits; row < end; row += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Point<float> point = tile[(row + i) * 32 + lane];
#pragma unroll
        for (int q = 0; q < TileConfig::queries; ++q) {
          least[q] = fminf(least[q], rough_distance(mine[q], point.at));  // ignores NaN
        }
      }
    }
#pragma unroll
    for (int q = 0; q < TileConfig::queries; ++q) {
      bounds[q] = fminf(bounds[q], least[q]);
      storage.least[q][group][lane] = least[q];
    }
  }
  sort_lanes(bounds, lane);
#pragma unroll
  for (int q = 0; q < TileConfig::queries; ++q) {
    const float bound = __shfl_sync(all_lanes, bounds[q], k - 1);
    const float found = neighbour_of(lists[q * k + k - 1]).distance;
    if (lane == 0) storage.reaches[q] = fminf(beyond_rounding(bound), found);
  }

#pragma unroll 1
  for (; wanted != 0; wanted &= wanted - 1) {
    const int q = __ffs(static_cast<int>(wanted)) - 1;
    __syncwarp();
    const Point<float> query = at[q];
    const float reach = storage.reaches[q];
    const float rough_reach = beyond_rounding(reach);
    unsigned groups = 0;  // of the lane, that may contain neighbours
#pragma unroll
    for (int group = 0; group < TileConfig::groups; ++group) {
      if (storage.least[q][group][lane] <= rough_reach) groups |= 1u << group;
    }
    __syncwarp();
    auto* const hits =
        reinterpret_cast<std::uint16_t*>(storage.least[q]);  // first points of groups
    int count = 0;
    for (;;) {  // one group of each lane that has any left
      const unsigned lanes = __ballot_sync(all_lanes, groups != 0);
      if (lanes == 0) break;
      if (groups != 0) {
        const int first_row = (__ffs(static_cast<int>(groups)) - 1) << bits;
        hits[count + __popc(lanes & ((1u << lane) - 1))] =
            static_cast<std::uint16_t>(first_row << 5 | lane);
        groups &= groups - 1;
      }
      count += __popc(lanes);
    }
    __syncwarp();
    KeyList list(storage.keys, k, lane);
    list.resume(lists + q * k);
#pragma unroll 1
    for (int base = 0; base < count << bits; base += 32) {
      const int i = base + lane;
      const int row = i & ((1 << bits) - 1);
      const int slot = i >> bits < count ? hits[i >> bits] + (row << 5) : size;
      float distance = std::numeric_limits<float>::infinity();
      std::int32_t index = -1;
      if (slot < size) {
        const Point<float> point = tile[slot];
        distance = squared_distance(query.at, point.at);
        index = point.index;
      }
      list.offer(distance <= reach, neighbour_key(distance, index));
    }
    list.save(lists + q * k);
  }
}

}  // namespace cudarelu::ops

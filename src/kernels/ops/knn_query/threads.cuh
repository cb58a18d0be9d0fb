// The search with a thread for each query, in float32. The queries of a warp are near each other:
// the warp traverses the tree for all of them, and keeps the leaves that any of them needs. Each
// thread then processes those leaves that it needs.
#pragma once

#include "ops/knn_query/call.cuh"
#include "ops/knn_query/tree.cuh"

namespace cudarelu::ops {

/// The shared memory of a warp.
struct ThreadsRoom {
  static constexpr int leaves = 32;     // that are processed together: a bit for each
  static constexpr int most_found = 8;  // points of a thread that wait
  static constexpr int columns = 33;    // one more than lanes: rows are read without bank conflicts
  static constexpr int step = 2;        // points between two checks of how many wait
  static constexpr int last_slot = (most_found - step + 1) * columns;  // with room for a step

  Point<float> points[leaves][leaf_points + 1];  // one more: leaves begin in different banks
  std::int32_t numbers[leaves];
  float distances[most_found][columns];
  std::int32_t indices[most_found][columns];
  Box<float> queries;              // of the threads that search
  Box<float> children[32];         // of the node that the warp is at
  unsigned nodes[max_levels][32];  // of the levels above: keys of children to be visited
};

/// The queries of a warp, with a list of up to `size` points for each thread in registers. The
/// threads insert the points that they have found at the same time.
template <int size>
class ThreadQueries {
 public:
  /// Searches for the threads with `searches`, whose queries are of one batch.
  __device__ ThreadQueries(const Tree<float>& tree, ThreadsRoom& room, const Batch& batch,
                           bool searches, const float (&at)[3], int nsample, int lane)
      : tree_(tree),
        room_(room),
        begin_(static_cast<int>(batch.begin)),
        end_(static_cast<int>(batch.end)),
        searches_(searches),
        lane_(lane),
        skip_(size - nsample),
        slot_(lane) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) at_[axis] = at[axis];
  }

  /// The points around position `near` are near the queries; if it is negative, this finds such a
  /// position first.
  __device__ void search(int near) {
    // Padding is at the front, so that the last item is the farthest for every nsample.
    const auto pad = [&] {
#pragma unroll
      for (int i = 0; i < size; ++i) items_[i] = i < skip_ ? key_before_all : no_key;
    };
    if (begin_ >= end_) return pad();
    int top = 0;  // the lowest level of which 32 nodes contain the batch
    while (((end_ - 1) >> node_shift(top)) - (begin_ >> node_shift(top)) >= 32) ++top;
    const Box<float> box = join_lanes<32>(searches_ ? Box<float>::of(at_, 0) : Box<float>::empty());
    if (lane_ == 0) room_.queries = box;
    reach_ = no_key;
    if (near < 0) near = nearest_leaf(top);
    bound_ = searches_ ? farthest_near(near) : -1.0f;
    pad();
    update_limit();
    update_reach();

    int level = top;
    int child = first_child(top) + lane_;
    unsigned key = look_at_child(level, child);
    unsigned leaves = 0;  // children of the node, to be tested
    for (bool ends = false; !ends;) {
      while (kept_ < ThreadsRoom::leaves) {
        if (level == 0 && leaves == 0) leaves = __ballot_sync(all_lanes, key != nothing);
        if (leaves != 0) {
          const int chosen = __ffs(static_cast<int>(leaves)) - 1;
          leaves &= leaves - 1;
          if (leaves == 0) key = nothing;
          keep_if_wanted(child - lane_ + chosen, room_.children[chosen]);
          continue;
        }
        const unsigned nearest = min_of_lanes(key);
        if (nearest == nothing || __uint_as_float(nearest & ~31u) > distance_of(reach_)) {
          ends = ++level > top;
          if (ends) break;
          child = (level == top ? first_child(top) : child >> node_bits & ~31) + lane_;
          key = room_.nodes[level][lane_];
          continue;
        }
        const int chosen = static_cast<int>(nearest & 31u);
        const int node = child - lane_ + chosen;
        if (lane_ == chosen) key = nothing;
        if (!is_wanted(tree_.boxes[level][node])) continue;
        room_.nodes[level][lane_] = key;
        --level;
        child = node << node_bits | lane_;
        key = look_at_child(level, child);
      }
      look_at_leaves();
    }
  }

  /// The warp writes the rows of the threads that search, one after the other.
  template <class T>
  __device__ void write(const Results<T>& results, std::int64_t query) {
    take_in();
    if (!searches_) query = -1;
    constexpr int columns = ThreadsRoom::most_found < size ? ThreadsRoom::most_found : size;
#pragma unroll
    for (int base = 0; base < size; base += columns) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const Neighbour<float> item = neighbour_of(items_[base + i]);
        room_.distances[i][lane_] = item.distance;
        room_.indices[i][lane_] = item.index;
      }
      __syncwarp();
      for (int i = lane_; i < 32 * columns; i += 32) {
        const int row = i / columns;
        const int column = i % columns;
        const int rank = base + column - skip_;
        const std::int64_t row_query = __shfl_sync(all_lanes, query, row);
        if (row_query < 0 || rank < 0) continue;
        results.write(row_query, rank,
                      Neighbour<float>{room_.distances[column][row], room_.indices[column][row]});
      }
    }
  }

 private:
  /// The first of the batch's nodes at a level.
  __device__ int first_child(int level) const { return begin_ >> node_shift(level); }

  /// The first position of a leaf, reached by way of the nearest child of each node.
  __device__ int nearest_leaf(int top) const {
    int child = first_child(top) + lane_;
    for (int level = top;; --level) {
      const unsigned nearest = min_of_lanes(look_at_child(level, child));
      if (nearest == nothing) return begin_;
      child += static_cast<int>(nearest & 31u) - lane_;
      if (level == 0) return child << leaf_bits;
      child = child << node_bits | lane_;
    }
  }

  /// An upper bound of the distance of neighbours: the nsample-th smallest of the distances of the
  /// nearest points of 2 * size groups of points around `near`.
  __device__ float farthest_near(int near) const {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    constexpr int points = 8 * size;
    const int first = max(min(near - points / 2, end_ - points), begin_);
    if (end_ - first < points) return infinity;
    const auto* const from = reinterpret_cast<const float4*>(tree_.points + first);
    float some[size];  // groups' least distances
    float others[size];
#pragma unroll
    for (int i = 0; i < size; ++i) {
      some[i] = i < skip_ ? -1.0f : infinity;
      others[i] = infinity;
    }
    const auto distance_to = [&](const float4& point) {
      const float at[3] = {point.x, point.y, point.z};
      return squared_distance(at_, at);
    };
#pragma unroll 1
    for (int base = 0; base < points; base += 2 * size) {
#pragma unroll
      for (int i = 0; i < size; ++i) some[i] = fminf(some[i], distance_to(from[base + i]));
#pragma unroll
      for (int i = 0; i < size; ++i) {
        others[i] = fminf(others[i], distance_to(from[base + size + i]));
      }
    }
    sort(some);
    sort(others);
    float farthest = -1;
#pragma unroll
    for (int i = 0; i < size; ++i) {  // the smaller ones of the pairs are the first half of both
      farthest = fmaxf(farthest, fminf(some[i], others[size - 1 - i]));
    }
    return farthest;
  }

  /// Each lane reads one child of a node: writes its box to shared memory, and returns its key, or
  /// `nothing` if no query needs it.
  __device__ unsigned look_at_child(int level, int child) const {
    constexpr float most = std::numeric_limits<float>::max();
    unsigned key = nothing;
    __syncwarp();
    if (child >= first_child(level) && child <= (end_ - 1) >> node_shift(level)) {
      const Box<float> box = tree_.boxes[level][child];
      room_.children[lane_] = box;
      const Neighbour<float> nearest = bound(room_.queries, box);
      if (nearest.distance <= most &&
          is_before(neighbour_key(nearest.distance, nearest.index), reach_)) {
        key = (__float_as_uint(nearest.distance) & ~31u) | lane_;
      }
    }
    __syncwarp();
    return key;
  }

  /// Whether a thread may need points of the box.
  __device__ bool is_wanted(const Box<float>& box) const {
    const Neighbour<float> nearest = bound(Box<float>::of(at_, 0), box);
    const bool wants = is_before(neighbour_key(nearest.distance, nearest.index), farthest());
    return __any_sync(all_lanes, wants && nearest.distance <= limit_) != 0;
  }

  __device__ void keep_if_wanted(int leaf, const Box<float>& box) {
    const bool wants = bound(Box<float>::of(at_, 0), box).distance <= limit_;
    if (!__any_sync(all_lanes, wants)) return;
    if (wants) wanted_ |= 1u << kept_;
    if (lane_ == 0) room_.numbers[kept_] = leaf;
    ++kept_;
  }

  __device__ void look_at_leaves() {
    __syncwarp();
#pragma unroll
    for (int base = 0; base < ThreadsRoom::leaves * leaf_points; base += 32) {
      const int leaf = (base + lane_) / leaf_points;
      if (leaf >= kept_) continue;
      const int place = (room_.numbers[leaf] << leaf_bits) + lane_ % leaf_points;
      const bool exists = place >= begin_ && place < end_;
      room_.points[leaf][lane_ % leaf_points] = exists ? tree_.points[place] : no_point();
    }
    kept_ = 0;
    __syncwarp();
    while (__any_sync(all_lanes, wanted_ != 0)) {
      const bool looks = wanted_ != 0;
      const int leaf = looks ? __ffs(static_cast<int>(wanted_)) - 1 : 0;
      const Point<float>* const points = room_.points[leaf];
      wanted_ &= wanted_ - 1;
#pragma unroll 1
      for (int base = 0; base < leaf_points; base += ThreadsRoom::step) {
        float distances[ThreadsRoom::step];
        std::int32_t indices[ThreadsRoom::step];
#pragma unroll
        for (int i = 0; i < ThreadsRoom::step; ++i) {
          const Point<float> point = points[base + i];
          distances[i] = squared_distance(at_, point.at);
          indices[i] = point.index;
        }
#pragma unroll
        for (int i = 0; i < ThreadsRoom::step; ++i) {
          if (!looks || !(distances[i] <= limit_)) continue;
          room_.distances[0][slot_] = distances[i];
          room_.indices[0][slot_] = indices[i];
          slot_ += ThreadsRoom::columns;
        }
        if (__any_sync(all_lanes, slot_ >= ThreadsRoom::last_slot)) take_in();
      }
    }
    update_reach();
  }

  __device__ void take_in() {
    NeighbourKey fresh[ThreadsRoom::most_found];
#pragma unroll
    for (int i = 0; i < ThreadsRoom::most_found; ++i) {
      fresh[i] = slot_ > i * ThreadsRoom::columns + lane_
                     ? neighbour_key(room_.distances[i][lane_], room_.indices[i][lane_])
                     : no_key;
    }
    slot_ = lane_;
    sort(fresh);
    constexpr int pairs = ThreadsRoom::most_found < size ? ThreadsRoom::most_found : size;
#pragma unroll
    for (int i = 0; i < pairs; ++i) {  // as in RegisterList
      if (is_before(fresh[i], items_[size - 1 - i])) items_[size - 1 - i] = fresh[i];
    }
    merge_bitonic(items_);
    update_limit();
  }

  __device__ void update_limit() {
    constexpr float most = std::numeric_limits<float>::max();
    limit_ = fminf(fminf(bound_, distance_of(items_[size - 1])), most);
  }

  /// The thread only needs points that come before this.
  __device__ NeighbourKey farthest() const {
    constexpr std::int32_t last = std::numeric_limits<std::int32_t>::max();
    if (bound_ < 0) return 0;
    const NeighbourKey bound = neighbour_key(bound_, last);
    return is_before(items_[size - 1], bound) ? items_[size - 1] : bound;
  }

  __device__ void update_reach() {
    const NeighbourKey mine = farthest();
    const auto upper = static_cast<unsigned>(mine >> 32);
    const unsigned most = max_of_lanes(upper);
    const unsigned lower = upper == most ? static_cast<unsigned>(mine) : 0;
    reach_ = NeighbourKey{most} << 32 | max_of_lanes(lower);
  }

  __device__ static unsigned max_of_lanes(unsigned value) { return ~min_of_lanes(~value); }

  const Tree<float>& tree_;
  ThreadsRoom& room_;
  int begin_;  // of the batch
  int end_;
  bool searches_;
  int lane_;
  int skip_;
  int slot_;             // for the next point that waits
  int kept_ = 0;         // leaves
  unsigned wanted_ = 0;  // those of them that the thread needs
  float at_[3];
  float bound_ = -1;        // no neighbour is farther; negative if the thread does not search
  float limit_ = -1;        // the same from the points so far, and finite
  NeighbourKey reach_ = 0;  // threads only need points that come before this
  NeighbourKey items_[size];
};

inline constexpr int threads_warps = 4;  // of a block

/// A thread for each query, in the tree. The queries are in the order of the curve.
template <class T, int size>
__global__ void __launch_bounds__(threads_warps * 32, size > 16 ? 4 : 6)
    search_by_thread(const __grid_constant__ Tree<float> tree, Queries<T> queries,
                     Results<T> results) {
  __shared__ ThreadsRoom rooms[threads_warps];
  cuda::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool exists = place < queries.count;
  const std::int64_t query = exists ? queries.at(place) : 0;
  Batch batch{0, 0};
  float at[3] = {};
  if (exists) {
    load_point(queries.new_xyz, query, at);
    if (is_finite(at)) batch = queries.batch(query);
  }
  // If the queries are the points, they are at the positions of these.
  const int near = queries.own ? static_cast<int>(place) - lane + 16 : -1;
  for (unsigned left = __ballot_sync(all_lanes, exists); left != 0;) {  // batches, mostly one
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const Batch shared_batch{__shfl_sync(all_lanes, batch.begin, leader),
                             __shfl_sync(all_lanes, batch.end, leader)};
    const bool searches = (left >> lane & 1u) != 0 && batch.begin == shared_batch.begin &&
                          batch.end == shared_batch.end;
    left &= ~__ballot_sync(all_lanes, searches);
    ThreadQueries<size> group(tree, rooms[threadIdx.x / 32], shared_batch, searches, at,
                              results.nsample, lane);
    group.search(near);
    group.write(results, query);
  }
}

}  // namespace cudarelu::ops

// The search with a thread for each query, in float32. The queries of a warp are near each other:
// the warp traverses the tree for all of them, and keeps the leaves that any of them needs. Each
// thread then processes those leaves that it needs.
#pragma once

#include "cudarelu/detail/cuda/async_copy.cuh"
#include "ops/knn_query/call.cuh"
#include "ops/knn_query/tree.cuh"

namespace cudarelu::ops {

/// The shared memory of a warp.
struct ThreadsStorage {
  static constexpr int leaves = 32;     // that are processed together: a bit for each
  static constexpr int max_found = 11;  // points of a thread that wait
  static constexpr int columns = 33;    // one more than lanes: rows are read without bank conflicts
  static constexpr int step = 2;        // points between two checks of how many wait
  static constexpr int last_slot = (max_found - step + 1) * columns;  // with storage for a step
  static constexpr int leaf_room = leaf_points + 1;  // leaves begin in different banks

  Point<float> points[leaves * leaf_room];  // of leaves, or those near the queries
  std::int32_t numbers[leaves];
  NeighbourKey found[max_found * columns];  // of points that wait: a column for each thread
  Box<float> queries;                       // of the threads that search
  Box<float> children[32];                  // of the node that the warp is at
  unsigned nodes[max_levels][32];           // of the levels above: keys of children to be visited
};

/// The queries of a warp, with a list of up to `size` points for each thread in registers. The
/// threads insert the points that they have found at the same time.
template <int size>
class ThreadQueries {
 public:
  /// Searches for the threads with `searches`, whose queries are of one batch.
  __device__ ThreadQueries(const Tree<float>& tree, ThreadsStorage& storage, const Batch& batch,
                           bool searches, const float (&at)[3], int nsample, int lane)
      : tree_(tree),
        storage_(storage),
        begin_(static_cast<int>(batch.begin)),
        end_(static_cast<int>(batch.end)),
        searches_(searches),
        lane_(lane),
        skip_(size - nsample),
        slot_(lane) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) at_[axis] = at[axis];
    // Padding is at the front, so that the last item is the farthest for every nsample.
#pragma unroll
    for (int i = 0; i < size; ++i) items_[i] = i < skip_ ? key_before_all : no_key;
  }

  /// The query of lane 16 is near the point at position `near`, and those of other lanes near the
  /// points before and after it. If `near` is negative, this finds a position near all queries.
  __device__ void search(int near) {
    if (begin_ >= end_) return;
    int top = 0;  // the lowest level of which 32 nodes contain the batch
    while (((end_ - 1) >> node_shift(top)) - (begin_ >> node_shift(top)) >= 32) ++top;
    const Box<float> box = join_lanes<32>(searches_ ? Box<float>::of(at_, 0) : Box<float>::empty());
    if (lane_ == 0) storage_.queries = box;
    reach_ = no_key;
    if (near < 0) near = nearest_leaf(top);
    update_limit();
    look_at_near_points(near);

    int level = top;
    int child = first_child(top) + lane_;
    unsigned key = nothing;        // of the child, until it is visited
    unsigned threads = all_lanes;  // that may need points of the node
    unsigned mine = 0;             // children that this thread needs
    // Returns leaves that any thread needs; 0 if the node has other children.
    const auto look_at_children = [&](const Box<float>& of_child) {
      key = look_at_child(of_child);
      if (level == 0 && static_cast<unsigned>(child - near_leaf_) < near_points / leaf_points) {
        key = nothing;
      }
      const unsigned needed = __ballot_sync(all_lanes, key != nothing);
      if (level > 0 && __popc(needed) <= __popc(threads))
        return 0u;  // each is tested when it is visited
      const unsigned wanted = wanted_children(needed, threads, mine);
      if (level == 0 || (wanted >> lane_ & 1u) == 0) key = nothing;
      return level == 0 ? wanted : 0;
    };
    unsigned leaves = look_at_children(box_of_child(level, child));
    for (;;) {
      while (leaves == 0 && level <= top) {  // goes on to the next leaves that are needed
        const unsigned nearest = min_of_lanes(key);
        if (nearest == nothing || __uint_as_float(nearest & ~lane_mask) > distance_of(reach_)) {
          if (++level > top) break;
          child = (level == top ? first_child(top) : child >> node_bits & ~31) + lane_;
          key = storage_.nodes[level][lane_];
          continue;
        }
        const int chosen = static_cast<int>(nearest & lane_mask);
        const int node = child - lane_ + chosen;
        if (lane_ == chosen) key = nothing;
        // Most nodes are wanted, so their children are read at the same time.
        const Box<float> of_child = box_of_child(level - 1, node << node_bits | lane_);
        threads = threads_that_want(tree_.boxes[level][node]);
        if (threads == 0) continue;
        storage_.nodes[level][lane_] = key;
        --level;
        child = node << node_bits | lane_;
        leaves = look_at_children(of_child);
      }
      if (leaves == 0 || kept_ + __popc(leaves) > ThreadsStorage::leaves) look_at_leaves();
      if (leaves == 0) return;
      if ((leaves >> lane_ & 1u) != 0) {
        storage_.numbers[kept_ + __popc(leaves & ((1u << lane_) - 1))] = child;
      }
      for (; leaves != 0; leaves &= leaves - 1, ++kept_) {
        if ((mine & leaves & ~(leaves - 1)) != 0) wanted_ |= 1u << kept_;
      }
    }
  }

  /// The warp writes the rows of the threads that search, one after the other.
  template <class S>
  __device__ void write(const Results<S>& results, std::int64_t query) {
    take_in_all();
    if (!searches_) query = -1;
    constexpr int columns = taken;
#pragma unroll
    for (int base = 0; base < size; base += columns) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        storage_.found[i * ThreadsStorage::columns + lane_] = items_[base + i];
      }
      __syncwarp();
      for (int i = lane_; i < 32 * columns; i += 32) {
        const int row = i / columns;
        const int column = i % columns;
        const int rank = base + column - skip_;
        const std::int64_t row_query = __shfl_sync(all_lanes, query, row);
        if (row_query < 0 || rank < 0) continue;
        results.write(row_query, rank,
                      neighbour_of(storage_.found[column * ThreadsStorage::columns + row]));
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
      const unsigned nearest = min_of_lanes(look_at_child(box_of_child(level, child)));
      if (nearest == nothing) return begin_;
      child += static_cast<int>(nearest & lane_mask) - lane_;
      if (level == 0) return child << leaf_bits;
      child = child << node_bits | lane_;
    }
  }

  /// Looks at the points of the leaves around position `near`, which begin at `near_leaf_`; the
  /// search skips these leaves. Each thread begins with the points next to its own query.
  __device__ void look_at_near_points(int near) {
    const int from = max(min(near - near_points / 2, end_ + leaf_points - near_points), begin_);
    near_leaf_ = from >> leaf_bits;
    const int first = near_leaf_ << leaf_bits;
#pragma unroll
    for (int i = lane_; i < near_points; i += 32) read_point(storage_.points[i], first + i);
    wait_for_points();
    const int own = near - first + lane_ - 16;
#pragma unroll 1
    for (int i = 0; i < near_points / 2; ++i) {
      look_at(storage_.points[(own + i) & (near_points - 1)],
              storage_.points[(own - i - 1) & (near_points - 1)], limit_);
    }
    take_in_all();
    update_reach();
  }

  /// Begins to read the point at a position to shared memory; no_point() outside of the batch.
  __device__ void read_point(Point<float>& to, int position) const {
    if (position >= begin_ && position < end_) {
      gpu::copy_async<sizeof(Point<float>)>(&to, tree_.points + position, true);
    } else {
      to = no_point();
    }
  }
  __device__ static void wait_for_points() {
    gpu::commit_copies();
    gpu::wait_for_copies<0>();
    __syncwarp();
  }

  __device__ Box<float> box_of_child(int level, int child) const {
    const bool exists = child >= first_child(level) && child <= (end_ - 1) >> node_shift(level);
    return exists ? tree_.boxes[level][child] : Box<float>::empty();
  }

  /// Each lane has a child of a node: writes its box to shared memory, and returns its key, or
  /// `nothing` if no query needs it.
  __device__ unsigned look_at_child(const Box<float>& box) const {
    constexpr float most = std::numeric_limits<float>::max();
    __syncwarp();
    storage_.children[lane_] = box;
    __syncwarp();
    const Neighbour<float> nearest = bound(storage_.queries, box);
    const bool needed = nearest.distance <= most &&
                        is_before(neighbour_key(nearest.distance, nearest.index), reach_);
    return needed ? (__float_as_uint(nearest.distance) & ~lane_mask) | lane_ : nothing;
  }

  /// The threads that may need points of the box.
  __device__ unsigned threads_that_want(const Box<float>& box) const {
    const Neighbour<float> nearest = bound(Box<float>::of(at_, 0), box);
    const bool wants = is_before(neighbour_key(nearest.distance, nearest.index), farthest());
    return __ballot_sync(all_lanes, wants && nearest.distance <= limit_);
  }

  /// Those of the `needed` children of a node that any of the `threads` may need; sets `mine` to
  /// those that this thread may need.
  __device__ unsigned wanted_children(unsigned needed, unsigned threads, unsigned& mine) const {
    mine = 0;
    if (__popc(needed) <= __popc(threads)) {  // all threads test a child
      for (; needed != 0; needed &= needed - 1) {
        const int chosen = __ffs(static_cast<int>(needed)) - 1;
        const bool wants =
            bound(Box<float>::of(at_, 0), storage_.children[chosen]).distance <= limit_;
        if (wants) mine |= 1u << chosen;
      }
      return union_of_lanes(mine);
    }
    unsigned any = 0;
    const Box<float> of_child = storage_.children[lane_];  // read again: registers are scarce
    for (; threads != 0; threads &= threads - 1) {         // each lane tests its child for a thread
      const int thread = __ffs(static_cast<int>(threads)) - 1;
      float at[3];
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) at[axis] = __shfl_sync(all_lanes, at_[axis], thread);
      const float limit = __shfl_sync(all_lanes, limit_, thread);
      const bool wants = bound(Box<float>::of(at, 0), of_child).distance <= limit;
      const unsigned children = __ballot_sync(all_lanes, wants) & needed;
      if (lane_ == thread) mine = children;
      any |= children;
    }
    return any;
  }

  __device__ void look_at_leaves() {
    __syncwarp();
#pragma unroll
    for (int base = 0; base < ThreadsStorage::leaves * leaf_points; base += 32) {
      const int leaf = (base + lane_) / leaf_points;
      const int i = lane_ % leaf_points;
      if (leaf >= kept_) continue;
      read_point(storage_.points[leaf * ThreadsStorage::leaf_room + i],
                 (storage_.numbers[leaf] << leaf_bits) + i);
    }
    kept_ = 0;
    wait_for_points();
    while (__any_sync(all_lanes, wanted_ != 0)) {
      const bool looks = wanted_ != 0;
      const int leaf = looks ? __ffs(static_cast<int>(wanted_)) - 1 : 0;
      const Point<float>* const points = storage_.points + leaf * ThreadsStorage::leaf_room;
      wanted_ &= wanted_ - 1;
#pragma unroll 1
      for (int i = 0; i < leaf_points; i += ThreadsStorage::step) {
        look_at(points[i], points[i + 1], looks ? limit_ : -1.0f);
      }
    }
    update_reach();
  }

  /// Keeps those of two points that are at most at distance `limit`, until they are taken in.
  __device__ void look_at(const Point<float>& a, const Point<float>& b, float limit) {
    static_assert(ThreadsStorage::step == 2);
    const float distances[] = {squared_distance(at_, a.at), squared_distance(at_, b.at)};
    const std::int32_t indices[] = {a.index, b.index};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!(distances[i] <= limit)) continue;
      storage_.found[slot_] = neighbour_key(distances[i], indices[i]);
      slot_ += ThreadsStorage::columns;
    }
    if (__any_sync(all_lanes, slot_ >= ThreadsStorage::last_slot)) take_in();
  }

  __device__ void take_in_all() {
    while (__any_sync(all_lanes, slot_ != lane_)) take_in();
  }

  /// Each thread inserts up to `taken` of the points that wait.
  __device__ void take_in() {
    NeighbourKey fresh[taken];
#pragma unroll
    for (int i = 0; i < taken; ++i) {
      const int slot = slot_ - (i + 1) * ThreadsStorage::columns;
      fresh[i] = slot >= 0 ? storage_.found[slot] : no_key;
    }
    slot_ = max(slot_ - taken * ThreadsStorage::columns, lane_);
    sort(fresh);
#pragma unroll
    for (int i = 0; i < taken; ++i) {  // as in RegisterList
      if (is_before(fresh[i], items_[size - 1 - i])) items_[size - 1 - i] = fresh[i];
    }
    merge_bitonic(items_);
    update_limit();
  }

  __device__ void update_limit() {
    constexpr float most = std::numeric_limits<float>::max();
    limit_ = searches_ ? fminf(distance_of(items_[size - 1]), most) : -1.0f;
  }

  /// The thread only needs points that come before this.
  __device__ NeighbourKey farthest() const { return searches_ ? items_[size - 1] : 0; }

  __device__ void update_reach() {
    const NeighbourKey mine = farthest();
    const auto upper = static_cast<unsigned>(mine >> 32);
    const unsigned most = max_of_lanes(upper);
    const unsigned lower = upper == most ? static_cast<unsigned>(mine) : 0;
    reach_ = NeighbourKey{most} << 32 | max_of_lanes(lower);
  }

  __device__ static unsigned max_of_lanes(unsigned value) { return ~min_of_lanes(~value); }

  static constexpr int near_points = 8 * size;
  static constexpr int taken = 8;  // points that are inserted together

  const Tree<float>& tree_;
  ThreadsStorage& storage_;
  int begin_;  // of the batch
  int end_;
  bool searches_;
  int lane_;
  int skip_;
  int slot_;             // for the next point that waits
  int kept_ = 0;         // leaves
  unsigned wanted_ = 0;  // those of them that the thread needs
  int near_leaf_ = 0;    // the first of the leaves near the queries
  float at_[3];
  float limit_ = -1;  // no neighbour is farther; finite, negative if the thread does not search
  NeighbourKey reach_ = 0;  // threads only need points that come before this
  NeighbourKey items_[size];
};

inline constexpr int threads_warps = 4;  // of a block
static_assert(6 * (threads_warps * sizeof(ThreadsStorage) + 1024) <= 228 * 1024,
              "six blocks on an H100");

/// A thread for each query, in the tree. The queries are in the order of the curve.
template <class S, int size>
__global__ void __launch_bounds__(threads_warps * 32, size > 16 ? 4 : 6)
    search_by_thread(const __grid_constant__ Tree<float> tree, Queries<S> queries,
                     Results<S> results) {
  __shared__ ThreadsStorage storages[threads_warps];
  gpu::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const std::int64_t position = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool exists = position < queries.count;
  const std::int64_t query = exists ? queries.at(position) : 0;
  Batch batch{0, 0};
  float at[3] = {};
  if (exists) {
    load_point(queries.new_xyz, query, at);
    if (is_finite(at)) batch = queries.batch(query);
  }
  // If the queries are the points, they are at the positions of these.
  const int near = queries.own ? static_cast<int>(position) - lane + 16 : -1;
  for (unsigned left = __ballot_sync(all_lanes, exists); left != 0;) {  // batches, mostly one
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const Batch shared_batch{__shfl_sync(all_lanes, batch.begin, leader),
                             __shfl_sync(all_lanes, batch.end, leader)};
    const bool searches = (left >> lane & 1u) != 0 && batch.begin == shared_batch.begin &&
                          batch.end == shared_batch.end;
    left &= ~__ballot_sync(all_lanes, searches);
    ThreadQueries<size> group(tree, storages[threadIdx.x / 32], shared_batch, searches, at,
                              results.nsample, lane);
    group.search(near);
    group.write(results, query);
  }
}

}  // namespace cudarelu::ops

// The searches: a warp for each query, through the tree or all points, a thread for each query, or
// a warp for some queries, through tiles of all points.
#pragma once

#include "ops/knn_query/lists.cuh"
#include "ops/knn_query/tile.cuh"

namespace cudarelu::ops {

/// A call's queries, and their batches' points.
template <class T>
struct Queries {
  const T* new_xyz;
  const std::int32_t* new_offset;
  const std::int32_t* offset;
  std::int64_t batches;
  std::int64_t points;
  std::int64_t count;
  const std::int32_t* order;  // null: as they are
  bool own;                   // the points themselves

  __device__ std::int64_t at(std::int64_t place) const {
    return order == nullptr ? place : order[place];
  }
  __device__ Batch batch(std::int64_t query) const {
    return batch_of_query(query, new_offset, offset, batches, points);
  }
};

inline constexpr int search_warps = 4;  // of a block, at most

/// A warp for each query, over all points of its batch.
template <class T, class List>
__global__ void __launch_bounds__(search_warps * 32)
    search_all(const T* xyz, Queries<T> queries, Results<T> results) {
  using C = Compute<T>;
  extern __shared__ double shared[];
  cuda::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int64_t query = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (query >= queries.count) return;
  List list(reinterpret_cast<char*>(shared) + warp * List::shared_bytes(results.nsample),
            results.nsample, lane);
  const Batch batch = queries.batch(query);
  C at[3];
  load_point(queries.new_xyz, query, at);
  for (std::int64_t base = batch.begin; base < batch.end; base += 32) {
    const std::int64_t point = base + lane;
    Neighbour<C> candidate = Neighbour<C>::none();
    if (point < batch.end) {
      C other[3];
      load_point(xyz, point, other);
      candidate = {squared_distance(at, other), static_cast<std::int32_t>(point)};
    }
    list.offer(candidate);
  }
  list.write(results, query);
}

/// The query of a warp that goes through the tree: its lanes look at four leaves at a time.
template <class C, class List>
class WarpQuery {
 public:
  __device__ WarpQuery(const Tree<C>& tree, const Batch& batch, const C (&at)[3], List& list,
                       int lane)
      : tree_(tree), batch_(batch), list_(list), lane_(lane) {
    for (int axis = 0; axis < 3; ++axis) at_[axis] = at[axis];
  }
  __device__ bool may_reach(float distance) const { return distance <= list_.farthest().distance; }
  __device__ bool wants(float distance, const Box<C>& box) const {
    if (distance < list_.farthest().distance) return true;
    return bound(Box<C>::of(at_, 0), box) < list_.farthest();  // as near as the farthest, or nearly
  }
  __device__ void visit(int leaf) {
    if (lane_ >> leaf_bits == leaves_) position_ = (leaf << leaf_bits) + lane_ % (1 << leaf_bits);
    if (++leaves_ == 32 >> leaf_bits) look();
  }
  __device__ void look() {
    Neighbour<C> candidate = Neighbour<C>::none();
    if (lane_ >> leaf_bits < leaves_ && position_ >= batch_.begin && position_ < batch_.end) {
      const Point<C> point = tree_.points[position_];
      candidate = {squared_distance(at_, point.at), point.index};
    }
    leaves_ = 0;
    list_.offer(candidate);
  }

 private:
  const Tree<C>& tree_;
  const Batch& batch_;
  List& list_;
  int lane_;
  int leaves_ = 0;
  int position_ = 0;
  C at_[3];
};

/// A warp for each query, through the tree.
template <class T, class List>
__global__ void __launch_bounds__(search_warps * 32)
    search_by_warp(const __grid_constant__ Tree<Compute<T>> tree, Queries<T> queries,
                   Results<T> results) {
  using C = Compute<T>;
  extern __shared__ double shared[];
  __shared__ Waiting waiting[search_warps];
  cuda::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (place >= queries.count) return;
  const std::int64_t query = queries.at(place);
  List list(reinterpret_cast<char*>(shared) + warp * List::shared_bytes(results.nsample),
            results.nsample, lane);
  const Batch batch = queries.batch(query);
  C at[3];
  load_point(queries.new_xyz, query, at);
  WarpQuery<C, List> group(tree, batch, at, list, lane);
  if (is_finite(at)) search_tree(tree, batch, Box<C>::of(at, 0), waiting[warp], group);
  group.look();
  list.write(results, query);
}

/// Queries that are near each other, one for each thread of a warp; they go through the tree
/// together, and look at each point together. In float32: the lists of float64 do not fit.
template <class List>
class ThreadQueries {
 public:
  __device__ ThreadQueries(const Tree<float>& tree, const float (&at)[3], List& list)
      : tree_(tree), list_(list) {
    for (int axis = 0; axis < 3; ++axis) at_[axis] = at[axis];
  }
  /// Goes on with the threads for which `searches` is true, all of one batch. Of the points
  /// [first, last) it is known that they are near.
  __device__ void enter(const Batch& batch, bool searches, std::int64_t first, std::int64_t last) {
    batch_ = batch;
    searches_ = searches;
    known_ = list_.farthest_of(static_cast<int>(min(last, batch.end) - max(first, batch.begin)),
                               [&](int i) {
                                 const std::int64_t position = max(first, batch.begin) + i;
                                 return squared_distance(at_, tree_.points[position].at);
                               });
    update();
  }
  __device__ bool may_reach(float distance) const { return distance <= reach_; }
  __device__ bool wants(float /*distance*/, const Box<float>& box) const {
    return __any_sync(all_lanes, bound(Box<float>::of(at_, 0), box) < farthest_) != 0;
  }
  __device__ void visit(int leaf) {
    const std::int64_t first = static_cast<std::int64_t>(leaf) << leaf_bits;
    const auto begin = static_cast<int>(max(first, batch_.begin));
    const auto end = static_cast<int>(min(first + (1 << leaf_bits), batch_.end));
    for (int position = begin; position < end; position += List::step) {
#pragma unroll
      for (int i = 0; i < List::step; ++i) {
        if (position + i >= end) break;
        const Point<float> point = tree_.points[position + i];
        const float distance = squared_distance(at_, point.at);
        if (distance <= farthest_.distance) list_.offer({distance, point.index});
      }
      if (list_.take_in_if_full()) update();
    }
  }

 private:
  __device__ void update() {
    const Neighbour<float>& farthest = list_.farthest();
    farthest_ = known_ < farthest ? known_ : farthest;
    if (!searches_) farthest_ = Neighbour<float>::before_all();
    // Floats that are not negative are in the order of their bits; this is the largest.
    const unsigned bits = __float_as_uint(max(farthest_.distance, 0.0f));
    reach_ = __uint_as_float(~min_of_lanes(~bits));
  }

  const Tree<float>& tree_;
  List& list_;
  Batch batch_{0, 0};
  bool searches_ = false;
  Neighbour<float> known_;     // nothing beyond it is a result
  Neighbour<float> farthest_;  // the same, as far as points have been taken in
  float reach_;
  float at_[3];
};

/// A thread for each query, through the tree. The queries are in the order of the curve.
template <class T, int size>
__global__ void __launch_bounds__(search_warps * 32)
    search_by_thread(const __grid_constant__ Tree<float> tree, Queries<T> queries,
                     Results<T> results) {
  using List = ThreadList<float, size>;
  __shared__ typename List::Shared shared[search_warps];
  __shared__ Waiting waiting[search_warps];
  cuda::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool exists = place < queries.count;
  const std::int64_t query = exists ? queries.at(place) : -1;
  Batch batch{0, 0};
  float at[3] = {};
  if (exists) {
    batch = queries.batch(query);
    load_point(queries.new_xyz, query, at);
  }
  List list(shared[warp], results.nsample, lane);
  ThreadQueries<List> group(tree, at, list);
  // Own queries are at the places of their points: what is about these is near.
  constexpr int near_points = 64;
  const std::int64_t near = queries.own ? place - lane - (near_points - 32) / 2 : queries.points;
  unsigned left = __ballot_sync(all_lanes, batch.begin < batch.end && is_finite(at));
  while (left != 0) {  // the batches that the warp's queries are of, mostly one
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const Batch shared_batch{__shfl_sync(all_lanes, batch.begin, leader),
                             __shfl_sync(all_lanes, batch.end, leader)};
    const bool searches = (left >> lane & 1u) != 0 && batch.begin == shared_batch.begin &&
                          batch.end == shared_batch.end;
    left &= ~__ballot_sync(all_lanes, searches);
    group.enter(shared_batch, searches, near, near + near_points);
    const Box<float> box = join_lanes<32>(searches ? Box<float>::of(at, 0) : Box<float>::empty());
    search_tree(tree, shared_batch, box, waiting[warp], group);
  }
  list.write(results, query);
}

/// What a block of search_tiles has in shared memory.
struct TilesRoom {
  static constexpr int warps = 8;
  static constexpr int queries = warps * tile_queries;
  static constexpr int most_points = 4096;  // of a tile

  TileRoom rooms[warps];
  Point<float> at[queries];  // with the number of the batch in the place of an index
  NeighbourKey lists[queries * most_tile_neighbours];
  int next_batch;
};

/// A warp for tile_queries queries, over all points of their batches: the block takes tiles of
/// `tile_points` points in turn, behind its TilesRoom.
template <class T>
__global__ void __launch_bounds__(TilesRoom::warps * 32, 3)
    search_tiles(const T* xyz, Queries<T> queries, Results<T> results, int tile_points) {
  using Room = TilesRoom;
  constexpr int warps = Room::warps;
  extern __shared__ double shared[];
  Room& room = *reinterpret_cast<Room*>(shared);
  auto* const tile = reinterpret_cast<Point<float>*>(&room + 1);
  cuda::wait_for_previous_kernel();
  const int k = results.nsample;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int first_of_warp = warp * tile_queries;
  const auto batches = static_cast<int>(queries.batches);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * Room::queries;
  int own_batch = batches;  // of the thread's query
  if (threadIdx.x < Room::queries) {
    Point<float> query = no_point();
    const std::int64_t number = first + threadIdx.x;
    if (number < queries.count) {
      load_point(queries.new_xyz, number, query.at);
      if (is_finite(query.at)) {
        own_batch = static_cast<int>(batch_number(number, queries.new_offset, queries.batches));
      }
    }
    query.index = own_batch;
    room.at[threadIdx.x] = query;
  }
  for (int i = threadIdx.x; i < Room::queries * k; i += warps * 32) room.lists[i] = no_key;

  for (int batch = -1;;) {  // those that the block has queries of, mostly one
    __syncthreads();
    if (threadIdx.x == 0) room.next_batch = batches;
    __syncthreads();
    if (own_batch > batch && own_batch < batches) atomicMin(&room.next_batch, own_batch);
    __syncthreads();
    batch = room.next_batch;
    if (batch == batches) break;
    unsigned wanted = 0;
#pragma unroll
    for (int q = 0; q < tile_queries; ++q) {
      wanted |= static_cast<unsigned>(room.at[first_of_warp + q].index == batch) << q;
    }
    const Batch points = batch_of(batch, queries.offset, queries.points);
    for (std::int64_t base = points.begin; base < points.end; base += tile_points) {
      const auto count = static_cast<int>(min(points.end - base, std::int64_t{tile_points}));
      const int rows = (count + 31) / 32;
      __syncthreads();
      for (int i = threadIdx.x; i < rows * 32; i += warps * 32) {
        Point<float> point = no_point();
        if (i < count) {
          load_point(xyz, base + i, point.at);
          point.index = static_cast<int>(base + i);
        }
        tile[i] = point;
      }
      __syncthreads();
      if (wanted != 0) {
        search_tile(tile, rows, room.at + first_of_warp, wanted, room.lists + first_of_warp * k, k,
                    room.rooms[warp]);
      }
    }
  }
  for (int q = first_of_warp; q < first_of_warp + tile_queries; ++q) {
    if (first + q < queries.count && lane < k) {
      results.write(first + q, lane, neighbour_of(room.lists[q * k + lane]));
    }
  }
}

}  // namespace cudarelu::ops

// Searches by a warp: of one query, in the tree or among all points; or of several queries, among
// all points in tiles.
#pragma once

#include "ops/knn_query/lists.cuh"
#include "ops/knn_query/tile.cuh"

namespace cudarelu::ops {

inline constexpr int search_warps = 4;  // of a block, at most

/// A warp for each query, over all points of its batch.
template <class S, class List>
__global__ void __launch_bounds__(search_warps * 32)
    search_all(Reals<S> xyz, Queries<S> queries, Results<S> results) {
  using C = Reals<S>::C;
  extern __shared__ uint4 shared[];
  gpu::wait_for_previous_kernel();
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

/// The query of a warp in the tree. Its lanes process four leaves at a time.
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
    return bound(Box<C>::of(at_, 0), box) < list_.farthest();  // at about the same distance
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

/// A warp for each query, in the tree.
template <class S, class List>
__global__ void __launch_bounds__(search_warps * 32)
    search_by_warp(const __grid_constant__ Tree<typename Reals<S>::C> tree, Queries<S> queries,
                   Results<S> results) {
  using C = Reals<S>::C;
  extern __shared__ uint4 shared[];
  __shared__ Waiting waiting[search_warps];
  gpu::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int64_t position = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (position >= queries.count) return;
  const std::int64_t query = queries.at(position);
  List list(reinterpret_cast<char*>(shared) + warp * List::shared_bytes(results.nsample),
            results.nsample, lane);
  const Batch batch = queries.batch(query);
  C at[3];
  load_point(queries.new_xyz, query, at);
  WarpQuery<C, List> group(tree, batch, at, list, lane);
  if (is_finite(at)) {
    search_tree(tree, batch, Box<C>::of(at, 0), queries.own ? position : -1, waiting[warp], group);
  }
  group.look();
  list.write(results, query);
}

/// The shared memory of a block of search_tiles.
template <class TileConfig>
struct TilesStorage {
  static constexpr int queries = TileConfig::warps * TileConfig::queries;

  TileStorage<TileConfig> storages[TileConfig::warps];
  Point<float> at[queries];  // the index is the number of the batch
  NeighbourKey lists[queries * max_tile_neighbours];
  int next_batch;
};

/// A warp for several queries, over all points of their batches. The block loads tiles of
/// `tile_points` points to shared memory, after its TilesStorage.
template <class S, class TileConfig>
__global__ void __launch_bounds__(TileConfig::warps * 32, TileConfig::blocks)
    search_tiles(Reals<S> xyz, Queries<S> queries, Results<S> results, int tile_points) {
  using Storage = TilesStorage<TileConfig>;
  constexpr int threads = TileConfig::warps * 32;
  extern __shared__ uint4 shared[];
  Storage& storage = *reinterpret_cast<Storage*>(shared);
  auto* const tile = reinterpret_cast<Point<float>*>(&storage + 1);
  gpu::wait_for_previous_kernel();
  const int k = results.nsample;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int first_of_warp = warp * TileConfig::queries;
  const auto batches = static_cast<int>(queries.batches);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * Storage::queries;
  int own_batch = batches;  // of the thread's query
  if (threadIdx.x < Storage::queries) {
    Point<float> query = no_point();
    const std::int64_t number = first + threadIdx.x;
    if (number < queries.count) {
      load_point(queries.new_xyz, number, query.at);
      if (is_finite(query.at)) {
        own_batch = static_cast<int>(batch_number(number, queries.new_offset, queries.batches));
      }
    }
    query.index = own_batch;
    storage.at[threadIdx.x] = query;
  }
  for (int i = threadIdx.x; i < Storage::queries * k; i += threads) storage.lists[i] = no_key;

  for (int batch = -1;;) {  // the batches of the queries of the block, mostly one
    __syncthreads();
    if (threadIdx.x == 0) storage.next_batch = batches;
    __syncthreads();
    if (own_batch > batch && own_batch < batches) atomicMin(&storage.next_batch, own_batch);
    __syncthreads();
    batch = storage.next_batch;
    if (batch == batches) break;
    unsigned wanted = 0;
#pragma unroll
    for (int q = 0; q < TileConfig::queries; ++q) {
      wanted |= static_cast<unsigned>(storage.at[first_of_warp + q].index == batch) << q;
    }
    const Batch points = batch_of(batch, queries.offset, queries.points);
    for (std::int64_t base = points.begin; base < points.end; base += tile_points) {
      const auto count = static_cast<int>(min(points.end - base, std::int64_t{tile_points}));
      const int bits = TileConfig::group_bits((count + 31) / 32);
      const int rows = (count + (32 << bits) - 1) >> (5 + bits) << bits;
      __syncthreads();
      for (int i = threadIdx.x; i < rows * 32; i += threads) {
        Point<float> point = no_point();
        if (i < count) {
          load_point(xyz, base + i, point.at);
          point.index = static_cast<int>(base + i);
        }
        tile[i] = point;
      }
      __syncthreads();
      if (wanted != 0) {
        search_tile<TileConfig>(tile, rows, bits, storage.at + first_of_warp, wanted,
                                storage.lists + first_of_warp * k, k, storage.storages[warp]);
      }
    }
  }
  for (int q = first_of_warp; q < first_of_warp + TileConfig::queries; ++q) {
    if (first + q < queries.count && lane < k) {
      results.write(first + q, lane, neighbour_of(storage.lists[q * k + lane]));
    }
  }
}

}  // namespace cudarelu::ops

// The points in the order of a Hilbert curve, and a tree of boxes over them: a leaf has 8
// consecutive points, every other node has 32 consecutive nodes.
#pragma once

#include <cub/device/device_radix_sort.cuh>

#include "cudarelu/detail/cuda/launch.cuh"
#include "ops/knn_query.h"
#include "ops/knn_query/neighbour.cuh"

namespace cudarelu::ops {

inline constexpr int tree_block = 256;
inline constexpr int leaf_bits = 3;
inline constexpr int leaf_points = 1 << leaf_bits;
inline constexpr int node_bits = 5;  // children of another node: a warp's lanes
inline constexpr int max_levels = 6;
inline constexpr std::int64_t max_tree_points = std::int64_t{1} << 30;

template <class C>
struct alignas(16) Point {
  C at[3];
  std::int32_t index;
};

/// No point: infinitely far from everything.
__device__ inline Point<float> no_point() {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  return {{infinity, infinity, infinity}, -1};
}

/// A box of points; empty if low > high.
template <class C>
struct alignas(16) Box {
  C low[3];
  std::int32_t first;  // the lowest index of its points
  C high[3];

  static __device__ Box empty() {
    constexpr C infinity = std::numeric_limits<C>::infinity();
    constexpr std::int32_t last = std::numeric_limits<std::int32_t>::max();
    return {{infinity, infinity, infinity}, last, {-infinity, -infinity, -infinity}};
  }
  static __device__ Box of(const C* at, std::int32_t index) {
    return {{at[0], at[1], at[2]}, index, {at[0], at[1], at[2]}};
  }
};

/// The box around the boxes of `width` neighbouring lanes.
template <int width, class C>
__device__ Box<C> join_lanes(Box<C> box) {
#pragma unroll
  for (int stride = width / 2; stride > 0; stride /= 2) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      box.low[axis] = min(box.low[axis], __shfl_xor_sync(all_lanes, box.low[axis], stride));
      box.high[axis] = max(box.high[axis], __shfl_xor_sync(all_lanes, box.high[axis], stride));
    }
    box.first = min(box.first, __shfl_xor_sync(all_lanes, box.first, stride));
  }
  return box;
}

/// A lower bound, in the order of results, of the points of one box for the queries of the other.
///
/// No pair has a smaller computed squared_distance. Rounding is monotonic: along an axis the
/// computed difference of a pair is not smaller than the computed gap, and both distances consist
/// of the same products and sums of these.
template <class C>
__device__ Neighbour<C> bound(const Box<C>& queries, const Box<C>& points) {
  C gap[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    gap[axis] = max(
        max(points.low[axis] - queries.high[axis], queries.low[axis] - points.high[axis]), C(0));
  }
  constexpr C origin[3] = {0, 0, 0};
  return {squared_distance(gap, origin), points.first};
}

template <class C>
__device__ bool is_finite(const C* at) {
  return isfinite(at[0]) && isfinite(at[1]) && isfinite(at[2]);
}

template <class Numbers, class C>
__device__ void load_point(const Numbers& xyz, std::int64_t i, C (&at)[3]) {
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) at[axis] = load(xyz[3 * i + axis]);
}

// ---- the order ----

/// Maps coordinates to cells of a grid, from a sample. On each axis, three quarters of a cell's
/// number come from the coordinate itself and a quarter from its rank in the sample, so that dense
/// regions keep some resolution next to outliers. Cells in the middle of the sample are cubes.
template <class C>
struct Quantiles {
  static constexpr int count = 256;
  C values[3][count];
  C low[3];      // the start of the range of the cells
  C inverse[3];  // 1 / the width of that range
  C scale[3];  // the width of the cells if all were as in the middle; 0 if the middle is one number
  C range[3];  // of the sample
};

/// At least 0 and at most 1. A NaN becomes 0.
template <class C>
__device__ float to_fraction(C value) {
  return fminf(fmaxf(static_cast<float>(value), 0.0f), 1.0f);
}

/// The position of a number between the first and the last cell of its axis, in [0, 1].
template <class C>
__device__ float position_of(C value, C low, C inverse, float rank) {
  return 0.75f * to_fraction((value - low) * inverse) + 0.25f / Quantiles<C>::count * rank;
}

/// A block for each axis sorts its sample, and chooses the cells.
template <class T>
__global__ void __launch_bounds__(Quantiles<T>::count)
    sample_quantiles(const T* xyz, std::int64_t size, Quantiles<Compute<T>>* quantiles) {
  using C = Compute<T>;
  __shared__ C sample[Quantiles<C>::count];
  __shared__ C sorted[Quantiles<C>::count];
  gpu::wait_for_previous_kernel();
  const int i = threadIdx.x;
  // Golden-ratio steps: evenly distributed, and not aligned with the rows of an image or a scan.
  const std::uint64_t position = i * 2654435769u;
  const auto point = static_cast<std::int64_t>((position * static_cast<std::uint64_t>(size)) >> 32);
  constexpr C infinity = std::numeric_limits<C>::infinity();
  C value = load(xyz[3 * point + blockIdx.x]);
  if (!isfinite(value)) value = infinity;
  sample[i] = value;
  const int last = max(__syncthreads_count(isfinite(value)) - 1, 0);
  int rank = 0;
  for (int j = 0; j < Quantiles<C>::count; ++j) {
    rank += static_cast<int>(sample[j] < value || (sample[j] == value && j < i));
  }
  sorted[rank] = value;
  quantiles->values[blockIdx.x][rank] = value;
  __syncthreads();
  if (i != 0) return;
  // The range goes beyond the sample by the width of its outermost 32nd, for the points that are
  // not in the sample; and beyond its inner 15/16 by at most their width, whatever the outliers.
  const int tail = last / 32;
  const C inner = sorted[last - tail] - sorted[tail];
  C low = 2 * sorted[0] - sorted[tail];
  C high = 2 * sorted[last] - sorted[last - tail];
  if (inner > 0) {
    low = max(low, sorted[tail] - inner);
    high = min(high, sorted[last - tail] + inner);
  }
  const C inverse = 1 / (high - low);
  const auto position_at = [&](int at) {
    return position_of(sorted[at], low, inverse, static_cast<float>(at));
  };
  const int eighth = last / 8;
  const C middle = sorted[last - eighth] - sorted[eighth];
  const int axis = blockIdx.x;
  quantiles->low[axis] = low;
  quantiles->inverse[axis] = inverse;
  // A 16th of both, which is finite.
  quantiles->scale[axis] = middle / 16 / (position_at(last - eighth) - position_at(eighth));
  quantiles->range[axis] = sorted[last] / 16 - sorted[0] / 16;
}

/// The cells of the axes, for the points of a block.
template <class C>
struct Cells {
  C values[3][Quantiles<C>::count];
  C low[3];
  C inverse[3];
  float share[3];  // the width of an axis in cells, relative to the widest one
};

/// All threads of a block call this. It ends with a barrier.
template <class C>
__device__ void load_cells(const Quantiles<C>& quantiles, Cells<C>& cells) {
  static_assert(tree_block == Quantiles<C>::count);
  const int i = threadIdx.x;
  for (int axis = 0; axis < 3; ++axis) cells.values[axis][i] = quantiles.values[axis][i];
  if (i < 3) {
    C widest = 0;
    for (const C scale : quantiles.scale) widest = max(widest, scale);
    if (widest == 0) {
      for (const C range : quantiles.range) widest = max(widest, range);
    }
    const C scale = quantiles.scale[i];
    cells.low[i] = quantiles.low[i];
    cells.inverse[i] = quantiles.inverse[i];
    const float share = to_fraction((scale > 0 ? scale : min(quantiles.range[i], widest)) / widest);
    // Some cells, however far away an eighth of the points is on another axis.
    cells.share[i] = fmaxf(share, 1.0f / 64);
  }
  __syncthreads();
}

/// The number of a coordinate's cell.
template <class C>
__device__ std::uint32_t cell_of(const Cells<C>& cells, int axis, C value, int bits) {
  const C* const sorted = cells.values[axis];
  int rank = 0;
#pragma unroll
  for (int step = Quantiles<C>::count / 2; step > 0; step /= 2) {
    if (sorted[rank + step - 1] < value) rank += step;
  }
  // Between sorted[rank - 1] and sorted[rank], except at the ends.
  auto between = static_cast<float>(rank);
  if (rank > 0) {
    const C below = sorted[rank - 1];
    between += to_fraction((value - below) / (sorted[rank] - below)) - 1.0f;
  }
  const float position = position_of(value, cells.low[axis], cells.inverse[axis], between);
  const auto cell =
      static_cast<std::uint32_t>(position * cells.share[axis] * static_cast<float>(1 << bits));
  return min(cell, (1u << bits) - 1);
}

/// Spreads 8 bits: two zeros follow each of them.
__device__ inline std::uint32_t spread(std::uint32_t bits) {
  bits = (bits | bits << 8) & 0x00f00fu;
  bits = (bits | bits << 4) & 0x0c30c3u;
  return (bits | bits << 2) & 0x249249u;
}

/// The position of a cell on the Hilbert curve (J. Skilling's transposition). Cells that are near
/// on the curve are near in space.
__device__ inline std::uint64_t hilbert(std::uint32_t (&cell)[3], int bits) {
  for (std::uint32_t bit = 1u << (bits - 1); bit > 1; bit >>= 1) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const std::uint32_t below = bit - 1;
      if ((cell[axis] & bit) != 0) {
        cell[0] ^= below;
      } else {
        const std::uint32_t differing = (cell[0] ^ cell[axis]) & below;
        cell[0] ^= differing;
        cell[axis] ^= differing;
      }
    }
  }
  cell[1] ^= cell[0];
  cell[2] ^= cell[1];
  std::uint32_t flips = cell[2] >> 1;  // each bit becomes the parity of the higher bits of cell[2]
  for (int shift = 1; shift < 16; shift *= 2) flips ^= flips >> shift;
  std::uint64_t key = 0;
#pragma unroll
  for (int byte = 1; byte >= 0; --byte) {
    std::uint32_t part = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      part = part << 1 | spread((cell[axis] ^ flips) >> 8 * byte & 0xffu);
    }
    key = key << 24 | part;
  }
  return key;
}

/// The bits of a key: the batch, and the position on the curve.
struct KeyBits {
  int batch;
  int axis;

  /// Enough for the numbers of batches and, along each axis, for a surface of the batch's points.
  KeyBits(std::int64_t points, std::int64_t batches) {
    batch = bit_width(batches);
    axis = bit_width(points / batches) / 2 + 2;
    if (axis > 16) axis = 16;
    if (axis > (64 - batch) / 3) axis = (64 - batch) / 3;
  }
  int total() const { return batch + 3 * axis; }

 private:
  static int bit_width(std::int64_t value) {
    int bits = 0;
    for (; value > 0; value >>= 1) ++bits;
    return bits;
  }
};

/// The keys of points or queries; those that are not finite come last in their batch.
template <class T>
__global__ void __launch_bounds__(tree_block)
    make_keys(const T* xyz, const std::int32_t* offset, std::int64_t size, std::int64_t batches,
              const Quantiles<Compute<T>>* quantiles, KeyBits bits, std::uint64_t* keys,
              std::int32_t* order) {
  using C = Compute<T>;
  __shared__ Cells<C> cells;
  gpu::wait_for_previous_kernel();
  load_cells(*quantiles, cells);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * tree_block + threadIdx.x;
  if (i >= size) return;
  C at[3];
  load_point(xyz, i, at);
  std::uint64_t position = (std::uint64_t{1} << (3 * bits.axis)) - 1;
  if (is_finite(at)) {
    std::uint32_t cell[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      cell[axis] = cell_of(cells, axis, at[axis], bits.axis);
    }
    position = hilbert(cell, bits.axis);
  }
  const auto batch = static_cast<std::uint64_t>(batch_number(i, offset, batches));
  keys[i] = batch << (3 * bits.axis) | position;
  order[i] = static_cast<std::int32_t>(i);
}

// ---- the boxes ----

/// The points in the order of the curve, and the boxes. Level 0 has the boxes of the leaves.
template <class C>
struct Tree {
  Point<C>* points;
  Box<C>* boxes[max_levels];
  int counts[max_levels];
  int size;
  int levels;
};

/// The bits of the position of a point in a node of a level.
__host__ __device__ constexpr int node_shift(int level) { return leaf_bits + node_bits * level; }

/// Gathers the points in order, and makes the boxes of the leaves. Points that are not finite are
/// in no box, and so are no neighbours.
template <class T>
__global__ void __launch_bounds__(tree_block)
    make_leaves(const T* xyz, const std::int32_t* order, Tree<Compute<T>> tree) {
  using C = Compute<T>;
  gpu::wait_for_previous_kernel();
  const int i = blockIdx.x * tree_block + threadIdx.x;
  Box<C> box = Box<C>::empty();
  if (i < tree.size) {
    Point<C> point;
    point.index = order[i];
    load_point(xyz, point.index, point.at);
    tree.points[i] = point;
    if (is_finite(point.at)) box = Box<C>::of(point.at, point.index);
  }
  box = join_lanes<1 << leaf_bits>(box);
  if (i < tree.size && i % (1 << leaf_bits) == 0) tree.boxes[0][i >> leaf_bits] = box;
}

template <class C>
__global__ void __launch_bounds__(tree_block)
    make_nodes(const __grid_constant__ Tree<C> tree, int level) {
  gpu::wait_for_previous_kernel();
  const int child = blockIdx.x * tree_block + threadIdx.x;
  const bool exists = child < tree.counts[level - 1];
  const Box<C> box = join_lanes<32>(exists ? tree.boxes[level - 1][child] : Box<C>::empty());
  if (exists && child % 32 == 0) tree.boxes[level][child >> node_bits] = box;
}

// ---- the search ----

__device__ inline unsigned min_of_lanes(unsigned value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_min_sync(all_lanes, value);
#else
  for (int stride = 16; stride > 0; stride /= 2) {
    value = min(value, __shfl_xor_sync(all_lanes, value, stride));
  }
  return value;
#endif
}

/// The bits that are set in any lane.
__device__ inline unsigned union_of_lanes(unsigned bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_or_sync(all_lanes, bits);
#else
  for (int stride = 16; stride > 0; stride /= 2) bits |= __shfl_xor_sync(all_lanes, bits, stride);
  return bits;
#endif
}

/// The children that the lanes of a warp still have to visit, for the levels above its position.
using Waiting = unsigned[max_levels][32];

/// The key of a child of a node: the bits of a lower bound of the squared distance, with the lane
/// in the last ones, so that the smallest key of a warp gives the lane; `nothing`: it is not
/// visited.
inline constexpr unsigned nothing = 0xffffffffu;
inline constexpr unsigned lane_mask = 31;

/// The key of a child for one query, where distances are stored one step (32) higher: the keys
/// below are left for the child with the query's own `position`, which comes first, since boxes of
/// other children may contain the query, too.
template <class C>
__device__ unsigned child_key(const Tree<C>& tree, int level, int child, const Batch& batch,
                              const Box<C>& query, std::int64_t position) {
  if (child >= tree.counts[level]) return nothing;
  const int shift = node_shift(level);
  const std::int64_t begin = static_cast<std::int64_t>(child) << shift;
  if (begin >= batch.end || begin + (std::int64_t{1} << shift) <= batch.begin) return nothing;
  if (position >> shift == child) return threadIdx.x % 32;
  constexpr C infinity = std::numeric_limits<C>::infinity();
  const C distance = bound(query, tree.boxes[level][child]).distance;
  if (!(distance < infinity)) return nothing;
  float below;
  if constexpr (std::is_same_v<C, double>) {
    below = __double2float_rd(distance);
  } else {
    below = distance;
  }
  return ((__float_as_uint(below) & ~lane_mask) + lane_mask + 1) | (threadIdx.x % 32);
}
/// The distance in a key of child_key().
__device__ inline float distance_of_child(unsigned key) {
  return __uint_as_float(max(key & ~lane_mask, lane_mask + 1) - (lane_mask + 1));
}

/// Visits the leaves that may contain neighbours of a warp's query, in each node the nearest first.
/// `position` is the query's among the points, or negative. `group.may_reach(distance)` is false if
/// the query does not need points at that distance, and `group.wants(distance, box)` if it does not
/// need the points of a box at that distance or farther. Both change as points are found.
template <class C, class Group>
__device__ void search_tree(const Tree<C>& tree, const Batch& batch, const Box<C>& query,
                            std::int64_t position, Waiting& waiting, Group& group) {
  const int lane = threadIdx.x % 32;
  int level = tree.levels - 1;
  int node = 0;
  unsigned key = child_key(tree, level, lane, batch, query, position);
  for (;;) {
    const unsigned nearest = min_of_lanes(key);
    const float distance = distance_of_child(nearest);
    if (nearest == nothing || !group.may_reach(distance)) {
      if (++level == tree.levels) return;
      node >>= node_bits;
      key = waiting[level][lane];
      continue;
    }
    const int chosen = static_cast<int>(nearest & lane_mask);
    if (lane == chosen) key = nothing;
    const int child = node << node_bits | chosen;
    if (!group.wants(distance, tree.boxes[level][child])) continue;
    if (level == 0) {
      group.visit(child);
    } else {
      waiting[level][lane] = key;
      --level;
      node = child;
      key = child_key(tree, level, child << node_bits | lane, batch, query, position);
    }
  }
}

}  // namespace cudarelu::ops

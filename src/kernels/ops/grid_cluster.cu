// One kernel finds the minimum and the maximum of parts of the points, if they are needed. The next
// kernel combines the parts in each block, and maps the points.
#include <algorithm>

#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/cuda/row_vector.cuh"
#include "cudarelu/detail/workspace.h"
#include "ops/grid_cluster.h"

namespace cudarelu::ops {
namespace {

constexpr int max_dims = 4;     // of points that a thread holds as a whole
constexpr int max_parts = 128;  // blocks that find extremes: four for each lane of a warp
constexpr int threads_of_part = 1024;
constexpr int threads_of_map = 256;

/// The smaller number, or NaN if one of them is.
template <class C>
__device__ C lower(C a, C b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<C, float>) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
  }
#endif
  return b < a || b != b ? b : a;
}
template <class C>
__device__ C higher(C a, C b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<C, float>) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
  }
#endif
  return b > a || b != b ? b : a;
}

/// `width` points in `dims` vectors of memory, which are aligned before point `aligned_end`.
template <class T, int dims>
struct Points {
  static constexpr int width = gpu::vector_bytes / sizeof(T);
  using Vector = gpu::RowVector<T, width>;
  Vector vectors[dims];

  __device__ Points(const T* pos, std::int64_t first, std::int64_t n, std::int64_t aligned_end) {
    const T* const from = pos + first * dims;
    if (first + width <= aligned_end) {
#pragma unroll
      for (int i = 0; i < dims; ++i) vectors[i] = reinterpret_cast<const Vector*>(from)[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < dims * width; ++i) {
      // The last point replaces those past the end.
      const bool inside = first + i / dims < n;
      vectors[i / width].set(i % width, inside ? from[i] : pos[(n - 1) * dims + i % dims]);
    }
  }
  __device__ Compute<T> operator()(int point, int dim) const {
    const int i = point * dims + dim;
    return load(vectors[i / width][i % width]);
  }
};

/// The extremes of each dimension in the points of each block: [2, dims, blocks].
template <class T, int dims>
__global__ void __launch_bounds__(threads_of_part)
    find_extremes(const T* pos, Compute<T>* extremes, std::int64_t n, std::int64_t aligned_end) {
  using C = Compute<T>;
  using Chunk = Points<T, dims>;
  constexpr int warps = threads_of_part / 32;
  __shared__ C of_warps[2 * dims][warps];
  gpu::wait_for_previous_kernel();
  gpu::let_next_kernel_start();  // it reads the points meanwhile
  C low[dims];
  C high[dims];
#pragma unroll
  for (int dim = 0; dim < dims; ++dim) low[dim] = high[dim] = load(pos[dim]);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads_of_part * Chunk::width;
  std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * threads_of_part + threadIdx.x) * Chunk::width;
#pragma unroll 2
  for (; first < n; first += step) {
    const Chunk points(pos, first, n, aligned_end);
#pragma unroll
    for (int i = 0; i < Chunk::width * dims; ++i) {
      const C x = points(i / dims, i % dims);
      low[i % dims] = lower(low[i % dims], x);
      high[i % dims] = higher(high[i % dims], x);
    }
  }
#pragma unroll
  for (int dim = 0; dim < dims; ++dim) {
    const C lowest = gpu::reduce_in_warp(low[dim], lower<C>);
    const C highest = gpu::reduce_in_warp(high[dim], higher<C>);
    if (threadIdx.x % 32 != 0) continue;
    of_warps[dim][threadIdx.x / 32] = lowest;
    of_warps[dims + dim][threadIdx.x / 32] = highest;
  }
  __syncthreads();
  static_assert(warps == 32, "a lane for each");
  const int which = threadIdx.x / 32;
  if (which >= 2 * dims) return;
  const C of_warp = of_warps[which][threadIdx.x % 32];
  const C result = which < dims ? gpu::reduce_in_warp(of_warp, lower<C>)
                                : gpu::reduce_in_warp(of_warp, higher<C>);
  if (threadIdx.x % 32 == 0) extremes[which * gridDim.x + blockIdx.x] = result;
}

/// Divides by one number, with correct rounding.
template <class C>
class Divider {
 public:
  Divider() = default;
  __device__ explicit Divider(C by) : by_(by), reciprocal_(1 / by) {}

  /// Whether quick() is correct.
  __device__ bool is_quick() const {
    return std::is_same_v<C, float> && fabs(by_) > C(0x1p-90) && fabs(by_) < C(0x1p90);
  }
  /// By Markstein's theorem, since `near` is at most one unit in the last place wrong. A remainder
  /// can underflow only for quotients below 1. Infinity gives NaN.
  __device__ C quick(C x) const {
    const C rough = x * reciprocal_;
    const C near = fma(fma(-rough, by_, x), reciprocal_, rough);
    return fma(fma(-near, by_, x), reciprocal_, near);
  }
  __device__ C operator()(C x) const { return x / by_; }

 private:
  C by_;
  C reciprocal_;
};

/// Where the cells begin and end; nullptr: at the extremes of the points.
template <class T>
struct Bounds {
  const T* size;
  const T* start;
  const T* end;
  const Compute<T>* extremes;
  int parts;
};

/// Where the cells begin and end in each dimension: one warp for each of these numbers.
template <int dims, class T>
__device__ void combine_extremes(const Bounds<T>& of, Compute<T>* bounds) {
  using C = Compute<T>;
  static_assert(2 * dims * 32 <= threads_of_map);
  const int warp = threadIdx.x / 32;
  if (warp >= 2 * dims) return;
  const bool is_start = warp < dims;
  const T* const given = is_start ? of.start : of.end;
  C bound;
  if (given != nullptr) {
    bound = load(given[is_start ? warp : warp - dims]);
  } else {
    const C* const parts = of.extremes + warp * of.parts;
    bound = parts[0];
#pragma unroll
    for (int part = threadIdx.x % 32; part < max_parts; part += 32) {
      if (part < of.parts)
        bound = is_start ? lower(bound, parts[part]) : higher(bound, parts[part]);
    }
    bound = is_start ? gpu::reduce_in_warp(bound, lower<C>) : gpu::reduce_in_warp(bound, higher<C>);
  }
  if (threadIdx.x % 32 == 0) bounds[warp] = bound;
}

/// `given`: both bounds are given.
template <class T, int dims, bool given>
__global__ void __launch_bounds__(threads_of_map)
    map_points(const T* pos, Bounds<T> of, std::int64_t* cluster, std::int64_t n,
               std::int64_t aligned_end) {
  using C = Compute<T>;
  using Chunk = Points<T, dims>;
  // Else the previous kernel finds the extremes, and has waited for the points.
  if constexpr (given) gpu::wait_for_previous_kernel();
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * threads_of_map + threadIdx.x) * Chunk::width;
  // Threads past the end read the last point: all threads are needed for the extremes.
  const Chunk points(pos, first < n ? first : n - 1, n, aligned_end);
  __shared__ C bounds[given ? 1 : 2 * dims];
  if constexpr (!given) {
    gpu::wait_for_previous_kernel();
    combine_extremes<dims>(of, bounds);
    __syncthreads();
  }
  Divider<C> in_cells[dims];
  C distances[dims][Chunk::width + 1];  // of the points and of the end, from the start
  bool is_quick = true;
#pragma unroll
  for (int dim = 0; dim < dims; ++dim) {
    in_cells[dim] = Divider<C>(load(of.size[dim]));
    is_quick = is_quick && in_cells[dim].is_quick();
    const C start = given ? load(of.start[dim]) : bounds[dim];
    const C end = given ? load(of.end[dim]) : bounds[dims + dim];
#pragma unroll
    for (int i = 0; i <= Chunk::width; ++i) {
      distances[dim][i] = (i < Chunk::width ? points(i, dim) : end) - start;
    }
  }
  bool is_small = true;  // all quotients fit int32
  const auto divide = [&](const auto& by) {
#pragma unroll
    for (int dim = 0; dim < dims; ++dim) {
#pragma unroll
      for (C& distance : distances[dim]) {
        distance = by(in_cells[dim], distance);
        is_small = is_small && fabs(distance) < C(0x1p31);
      }
    }
  };
  if (is_quick) {
    divide([](const Divider<C>& divider, C x) { return divider.quick(x); });
  } else {
    divide([](const Divider<C>& divider, C x) { return divider(x); });
  }
  std::int64_t clusters[Chunk::width] = {};
  const auto add_up = [&](const auto& cell_of) {
    std::int64_t stride = 1;
#pragma unroll
    for (int dim = 0; dim < dims; ++dim) {
#pragma unroll
      for (int i = 0; i < Chunk::width; ++i) {
        clusters[i] = wrapping_sum(clusters[i], cell_of(distances[dim][i]), stride);
      }
      stride = wrapping_sum(stride, cell_of(distances[dim][Chunk::width]), stride);
    }
  };
  if (is_small) {
    add_up([](C quotient) { return std::int64_t{static_cast<std::int32_t>(quotient)}; });
  } else {
    add_up([](C quotient) { return truncated(quotient); });
  }
  if (first + Chunk::width <= aligned_end) {
#pragma unroll
    for (int i = 0; i < Chunk::width; i += 2) {
      reinterpret_cast<longlong2*>(cluster + first)[i / 2] =
          longlong2{clusters[i], clusters[i + 1]};
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < Chunk::width; ++i) {
    if (first + i < n) cluster[first + i] = clusters[i];
  }
}

// Points of many dimensions: a block for each dimension, then a thread for each point.

template <class T>
__global__ void __launch_bounds__(threads_of_part)
    find_extremes_of_many(const T* pos, Compute<T>* extremes, std::int64_t n, std::int64_t dims) {
  using C = Compute<T>;
  __shared__ C of_warps[2][threads_of_part / 32];
  gpu::wait_for_previous_kernel();
  const T* const x = pos + blockIdx.x;
  C low = load(x[0]);
  C high = low;
  for (std::int64_t i = threadIdx.x; i < n; i += threads_of_part) {
    low = lower(low, load(x[i * dims]));
    high = higher(high, load(x[i * dims]));
  }
  low = gpu::reduce_in_warp(low, lower<C>);
  high = gpu::reduce_in_warp(high, higher<C>);
  if (threadIdx.x % 32 == 0) {
    of_warps[0][threadIdx.x / 32] = low;
    of_warps[1][threadIdx.x / 32] = high;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 1; i < threads_of_part / 32; ++i) {
    low = lower(low, of_warps[0][i]);
    high = higher(high, of_warps[1][i]);
  }
  extremes[blockIdx.x] = low;
  extremes[dims + blockIdx.x] = high;
}

template <class T>
__global__ void __launch_bounds__(threads_of_map)
    map_points_of_many(const T* pos, Bounds<T> of, std::int64_t* cluster, std::int64_t n,
                       std::int64_t dims) {
  using C = Compute<T>;
  gpu::wait_for_previous_kernel();
  const std::int64_t point = static_cast<std::int64_t>(blockIdx.x) * threads_of_map + threadIdx.x;
  if (point >= n) return;
  std::int64_t result = 0;
  std::int64_t stride = 1;
  for (std::int64_t dim = 0; dim < dims; ++dim) {
    const C size = load(of.size[dim]);
    const C start = of.start != nullptr ? load(of.start[dim]) : of.extremes[dim];
    const C end = of.end != nullptr ? load(of.end[dim]) : of.extremes[dims + dim];
    result =
        wrapping_sum(result, truncated((load(pos[point * dims + dim]) - start) / size), stride);
    stride = wrapping_sum(stride, truncated((end - start) / size), stride);
  }
  cluster[point] = result;
}

template <class T>
Status launch_cluster(const Call& call) {
  using C = Compute<T>;
  const auto input = [&](int i) {
    return call.inputs[i].present ? static_cast<const T*>(call.inputs[i].data) : nullptr;
  };
  const T* const pos = input(0);
  auto* const cluster = static_cast<std::int64_t*>(call.outputs[0].data);
  const std::int64_t n = call.inputs[0].shape[0];
  const std::int64_t dims = call.inputs[0].shape[1];
  if (n == 0) return {};
  Bounds<T> bounds{input(1), input(2), input(3), nullptr, 0};
  const bool whole = bounds.start != nullptr && bounds.end != nullptr;
  const bool is_many = dims == 0 || dims > max_dims;
  const std::int64_t width = gpu::vector_bytes / sizeof(T);
  C* extremes = nullptr;
  if (!whole && dims > 0) {
    bounds.parts = static_cast<int>(
        std::min<std::int64_t>(max_parts, gpu::blocks_for(n, threads_of_part * width)));
    const std::int64_t count = 2 * dims * (is_many ? 1 : bounds.parts);
    if (Status status = allocate(call, count, extremes); !status.ok()) return status;
    bounds.extremes = extremes;
  }
  if (is_many) {
    if (extremes != nullptr) {
      Status status =
          gpu::launch(call, find_extremes_of_many<T>,
                      {static_cast<unsigned>(dims), threads_of_part}, pos, extremes, n, dims);
      if (!status.ok()) return status;
    }
    return gpu::launch(call, map_points_of_many<T>,
                       {gpu::blocks_for(n, threads_of_map), threads_of_map}, pos, bounds, cluster,
                       n, dims);
  }
  // Only aligned points are read and written as vectors.
  const std::int64_t aligned_end =
      gpu::misalignment(pos) == 0 && gpu::misalignment(cluster) == 0 ? n : 0;
  const auto with_dims = [&]<int dims>() -> Status {
    const gpu::Grid grid{gpu::blocks_for(n, threads_of_map * width), threads_of_map};
    if (extremes == nullptr) {
      return gpu::launch(call, map_points<T, dims, true>, grid, pos, bounds, cluster, n,
                         aligned_end);
    }
    Status status = gpu::launch(call, find_extremes<T, dims>,
                                {static_cast<unsigned>(bounds.parts), threads_of_part}, pos,
                                extremes, n, aligned_end);
    if (!status.ok()) return status;
    return gpu::launch(call, map_points<T, dims, false>, grid, pos, bounds, cluster, n,
                       aligned_end);
  };
  switch (dims) {
    case 1:
      return with_dims.template operator()<1>();
    case 2:
      return with_dims.template operator()<2>();
    case 3:
      return with_dims.template operator()<3>();
    default:
      return with_dims.template operator()<4>();
  }
}

}  // namespace

Status GridCluster::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype,
                                  [&]<class T>(TypeTag<T>) { return launch_cluster<T>(call); });
}

}  // namespace cudarelu::ops

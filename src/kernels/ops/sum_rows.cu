#include <algorithm>
#include <bit>

#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/cluster.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/workspace.h"
#include "cudarelu/types.h"
#include "ops/sum_rows.h"

namespace cudarelu::ops {
namespace {

constexpr int block_size = 256;
constexpr unsigned cluster_blocks = 8;

/// The rows of a thread whose loads are in flight at the same time.
template <int width>
constexpr int rows_at_once = width == 1 ? 8 : 4;

template <class T, int width>
struct alignas(sizeof(T) * width) Columns {
  T items[width];
};

/// y[i, column] = the sum of x[row, column] over part i of the rows. The parts are those of the
/// grid in y, or the blocks of a cluster, which adds them up to y[0, column]. A thread has `width`
/// columns. Begins with the last rows, which may still be in the cache. Without atomics, so that
/// the order of the additions is fixed.
template <class T, class Out, int width, bool in_cluster>
__global__ void __launch_bounds__(block_size)
    sum_part(const T* x, Out* y, std::int64_t rows, std::int64_t columns, unsigned parts) {
  using C = Compute<T>;
  const unsigned part = in_cluster ? blockIdx.x % parts : blockIdx.y;
  const unsigned tile = in_cluster ? blockIdx.x / parts : blockIdx.x;
  __shared__ C partial[block_size][width];
  __shared__ C of_blocks[in_cluster ? cluster_blocks : 1][32][width];
  if constexpr (in_cluster) gpu::arrive_at_cluster();
  gpu::wait_for_previous_kernel();
  gpu::let_next_kernel_start();
  const std::int64_t column = (static_cast<std::int64_t>(tile) * blockDim.x + threadIdx.x) * width;
  C total[width] = {};
  if (column < columns) {
    const auto at = [&](std::int64_t row) {
      return *reinterpret_cast<const Columns<T, width>*>(x + row * columns + column);
    };
    const auto add = [&](const Columns<T, width>& of_row) {
#pragma unroll
      for (int j = 0; j < width; ++j) total[j] += load(of_row.items[j]);
    };
    const std::int64_t step = static_cast<std::int64_t>(parts) * blockDim.y;
    std::int64_t row = rows - 1 - part * blockDim.y - threadIdx.y;
    for (; row >= (rows_at_once<width> - 1) * step; row -= rows_at_once<width> * step) {
      Columns<T, width> of_rows[rows_at_once<width>];
#pragma unroll
      for (int i = 0; i < rows_at_once<width>; ++i) of_rows[i] = at(row - i * step);
#pragma unroll
      for (int i = 0; i < rows_at_once<width>; ++i) add(of_rows[i]);
    }
    for (; row >= 0; row -= step) add(at(row));
  }
  const auto put = [&] {
#pragma unroll
    for (int j = 0; j < width; ++j) partial[threadIdx.y * blockDim.x + threadIdx.x][j] = total[j];
  };
  const auto add_up = [&](const C* more) {
#pragma unroll
    for (int j = 0; j < width; ++j) total[j] += more[j];
  };
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    if (threadIdx.y < 2 * half) put();
    __syncthreads();
    if (threadIdx.y < half) add_up(partial[(threadIdx.y + half) * blockDim.x + threadIdx.x]);
    __syncthreads();
  }
  const bool is_last = threadIdx.y == 0 && column < columns;
  if constexpr (in_cluster) {
    gpu::wait_for_cluster();
    C* const slot = gpu::of_cluster(of_blocks[part][threadIdx.x], 0);
    if (is_last) {
#pragma unroll
      for (int j = 0; j < width; ++j) slot[j] = total[j];
    }
    gpu::arrive_at_cluster();
    gpu::wait_for_cluster();
    if (part > 0 || !is_last) return;
    for (unsigned i = 1; i < parts; ++i) add_up(of_blocks[i][threadIdx.x]);
  }
  if (!is_last) return;
  const std::int64_t to = in_cluster ? column : part * columns + column;
#pragma unroll
  for (int j = 0; j < width; ++j) y[to + j] = store<Out>(total[j]);
}

/// The threads of a block that have different columns.
unsigned threads_across(std::int64_t threads) {
  const auto across = static_cast<std::uint64_t>(std::clamp<std::int64_t>(threads, 1, 32));
  return static_cast<unsigned>(std::bit_ceil(across));
}

template <int width, bool in_cluster = false, class T, class Out>
Status launch_sum(const Call& call, const T* x, Out* y, std::int64_t rows, std::int64_t columns,
                  std::int64_t parts) {
  const std::int64_t threads = columns / width;
  const unsigned across = threads_across(threads);
  const auto count = static_cast<unsigned>(parts);
  const unsigned tiles = gpu::blocks_for(threads, across);
  gpu::Grid grid{dim3(tiles, count), dim3(across, block_size / across)};
  if (in_cluster) {
    grid.blocks = tiles * count;
    grid.cluster = count;
  }
  return gpu::launch(call, sum_part<T, Out, width, in_cluster>, grid, x, y, rows, columns, count);
}

/// Sums in stages: each sums the rows of each part to one row. There are enough parts to fill the
/// device once, unless they would have fewer than fewest_rows rows. A cluster sums few rows in one
/// stage.
template <int width, class T, class Out>
Status sum(const Call& call, const T* x, Out* y, std::int64_t rows, std::int64_t columns) {
  using C = Compute<T>;
  constexpr std::int64_t fewest_rows = 32;
  constexpr std::int64_t max_rows = 16;  // of a thread in a cluster
  const int device = call.execution.device_index;
  const int multiprocessors = gpu::number_of<cudaDevAttrMultiProcessorCount>(device);
  const std::int64_t wanted = 4 * multiprocessors / gpu::ceil_div(columns, 32 * width);
  const std::int64_t parts = std::clamp<std::int64_t>(wanted, 1, rows / fewest_rows + 1);
  if (parts == 1 || rows <= 4 * fewest_rows) {
    return launch_sum<width>(call, x, y, rows, columns, 1);
  }
  const std::int64_t rows_at_a_time = block_size / threads_across(columns / width);
  if (rows <= cluster_blocks * max_rows * rows_at_a_time && gpu::has_programmatic_launch(device)) {
    const auto blocks = std::min<std::int64_t>(parts, cluster_blocks);
    return launch_sum<width, true>(call, x, y, rows, columns, blocks);
  }
  C* partial = nullptr;
  if (Status status = allocate(call, parts * columns, partial); !status.ok()) return status;
  Status status = launch_sum<width>(call, x, partial, rows, columns, parts);
  if (!status.ok()) return status;
  return sum<1>(call, static_cast<const C*>(partial), y, parts, columns);
}

}  // namespace

Status SumRows::cuda(const Call& call) {
  const std::int64_t columns = call.outputs[0].size();
  if (columns == 0) return {};
  const std::int64_t rows = call.inputs[0].size() / columns;
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    constexpr int width = gpu::vector_bytes / sizeof(T);
    const bool vectors = gpu::misalignment(x) == 0 && columns % width == 0;
    return vectors ? sum<width>(call, x, y, rows, columns) : sum<1>(call, x, y, rows, columns);
  });
}

}  // namespace cudarelu::ops

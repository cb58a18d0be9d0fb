#include <algorithm>
#include <bit>

#include "cudarelu/cuda/alignment.h"
#include "cudarelu/cuda/launch.cuh"
#include "cudarelu/types.h"
#include "cudarelu/workspace.h"
#include "ops/sum_rows.h"

namespace cudarelu::ops {
namespace {

constexpr int block_size = 256;

/// The rows of a thread whose loads are in flight at the same time.
template <int width>
constexpr int rows_at_once = width == 1 ? 8 : 4;

template <class T, int width>
struct alignas(sizeof(T) * width) Columns {
  T items[width];
};

/// y[i, column] = the sum of x[row, column] over part i of gridDim.y parts of the rows. A thread
/// has `width` columns. Begins with the last rows, which may still be in the cache. Without
/// atomics, so that the order of the additions is fixed.
template <class T, class Out, int width>
__global__ void __launch_bounds__(block_size)
    sum_part(const T* x, Out* y, std::int64_t rows, std::int64_t columns) {
  using C = Compute<T>;
  __shared__ C partial[block_size][width];
  cuda::wait_for_previous_kernel();
  cuda::let_next_kernel_start();
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * width;
  C total[width] = {};
  if (column < columns) {
    const auto at = [&](std::int64_t row) {
      return *reinterpret_cast<const Columns<T, width>*>(x + row * columns + column);
    };
    const auto add = [&](const Columns<T, width>& part) {
#pragma unroll
      for (int j = 0; j < width; ++j) total[j] += load(part.items[j]);
    };
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
    std::int64_t row = rows - 1 - blockIdx.y * blockDim.y - threadIdx.y;
    for (; row >= (rows_at_once<width> - 1) * step; row -= rows_at_once<width> * step) {
      Columns<T, width> parts[rows_at_once<width>];
#pragma unroll
      for (int i = 0; i < rows_at_once<width>; ++i) parts[i] = at(row - i * step);
#pragma unroll
      for (int i = 0; i < rows_at_once<width>; ++i) add(parts[i]);
    }
    for (; row >= 0; row -= step) add(at(row));
  }
#pragma unroll
  for (int j = 0; j < width; ++j) partial[threadIdx.y * blockDim.x + threadIdx.x][j] = total[j];
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (unsigned i = 1; i < blockDim.y; ++i) {
#pragma unroll
    for (int j = 0; j < width; ++j) total[j] += partial[i * blockDim.x + threadIdx.x][j];
  }
#pragma unroll
  for (int j = 0; j < width; ++j) y[blockIdx.y * columns + column + j] = store<Out>(total[j]);
}

template <int width, class T, class Out>
Status launch_sum(const Call& call, const T* x, Out* y, std::int64_t rows, std::int64_t columns,
                  std::int64_t parts) {
  const std::int64_t threads = columns / width;
  const auto across = static_cast<unsigned>(
      std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(threads, 1, 32))));
  const dim3 grid(cuda::blocks_for(threads, across), static_cast<unsigned>(parts));
  return cuda::launch(call, sum_part<T, Out, width>, {grid, dim3(across, block_size / across)}, x,
                      y, rows, columns);
}

/// Sums in stages: each sums the rows of each part to one row. There are enough parts to fill the
/// device once, unless they would have fewer than fewest_rows rows.
template <int width, class T, class Out>
Status sum(const Call& call, const T* x, Out* y, std::int64_t rows, std::int64_t columns) {
  using C = Compute<T>;
  constexpr std::int64_t fewest_rows = 32;
  const int multiprocessors =
      cuda::number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
  const std::int64_t wanted = 4 * multiprocessors / cuda::ceil_div(columns, 32 * width);
  const std::int64_t parts = std::clamp<std::int64_t>(wanted, 1, rows / fewest_rows + 1);
  if (parts == 1 || rows <= 4 * fewest_rows) {
    return launch_sum<width>(call, x, y, rows, columns, 1);
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
    constexpr int width = cuda::vector_bytes / sizeof(T);
    const bool vectors = cuda::misalignment(x) == 0 && columns % width == 0;
    return vectors ? sum<width>(call, x, y, rows, columns) : sum<1>(call, x, y, rows, columns);
  });
}

}  // namespace cudarelu::ops

// Launches the kernels of rows.cuh, and adds up the sums of the gradients of weight and bias in a
// fixed order. Launches those of any_rows.cuh if rows are too long, the tensors have different
// alignments to vectors, the device is too old, or rows of float64 are short.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "cudarelu/detail/workspace.h"
#include "ops/layer_norm_backward.h"
#include "ops/layer_norm_backward/any_rows.cuh"
#include "ops/layer_norm_backward/rows.cuh"

namespace cudarelu::ops {
namespace {

using namespace layer_norm_gradient;

constexpr int add_threads = 1024;

/// Adds up the sums of `count` blocks, for grad_weight and then for grad_bias.
template <class T>
__global__ void __launch_bounds__(add_threads)
    add_sums(const Compute<T>* sums, T* grad_weight, T* grad_bias, int count,
             std::int64_t columns) {
  using C = Compute<T>;
  __shared__ C partial[add_threads];
  gpu::wait_for_previous_kernel();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  C total = 0;
  if (column < 2 * columns) {
#pragma unroll 8
    for (int i = threadIdx.y; i < count; i += blockDim.y) total += sums[i * 2 * columns + column];
  }
  partial[threadIdx.y * blockDim.x + threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || column >= 2 * columns) return;
  for (unsigned i = 1; i < blockDim.y; ++i) total += partial[i * blockDim.x + threadIdx.x];
  T* const to = column < columns ? grad_weight + column : grad_bias + (column - columns);
  *to = store<T>(total);
}

template <class T>
Status launch_add(const Call& call, const Compute<T>* sums, std::int64_t count,
                  std::int64_t columns) {
  // A thread adds up at most 8 sums, or each column has 32 threads.
  const unsigned down = std::min(std::bit_ceil(gpu::blocks_for(count, 8) | 1u), 32u);
  const unsigned across = add_threads / down;
  return gpu::launch(call, add_sums<T>, {gpu::blocks_for(2 * columns, across), dim3(across, down)},
                     sums, static_cast<T*>(call.outputs[1].data),
                     static_cast<T*>(call.outputs[2].data), static_cast<int>(count), columns);
}

template <class T>
Status launch_any(const Call& call, const Arguments<T>& of) {
  using C = Compute<T>;
  const unsigned tiles = gpu::blocks_for(of.columns, tile_columns);
  const std::int64_t chunks = std::clamp<std::int64_t>(2048 / tiles, 1, of.rows / 32 + 1);
  gpu::Normaliser<C>* normalisers = nullptr;
  if (Status status = allocate(call, of.rows, normalisers); !status.ok()) return status;
  C* sums = nullptr;
  if (Status status = allocate(call, chunks * 2 * of.columns, sums); !status.ok()) return status;
  const unsigned rows = gpu::blocks_for(std::min(of.rows, gpu::largest_grid), 1);
  Status for_rows = gpu::launch(call, row_gradients<T>, {rows, 256}, of, normalisers);
  if (!for_rows.ok()) return for_rows;
  const dim3 blocks(tiles, static_cast<unsigned>(chunks));
  Status for_chunks = gpu::launch(call, sum_chunks<T>, {blocks, dim3(tile_columns, chunk_rows)}, of,
                                  normalisers, sums);
  if (!for_chunks.ok()) return for_chunks;
  return launch_add<T>(call, sums, chunks, of.columns);
}

template <class T, class Layout>
Status launch_rows(const Call& call, const Arguments<T>& of, std::int64_t vectors) {
  const int device = call.execution.device_index;
  if (Layout::cluster ? !gpu::has_programmatic_launch(device)
                      : Layout::lanes == 0 && !gpu::is_compiled_for(80, device)) {
    return launch_any(call, of);
  }
  constexpr auto kernel = rows_of_blocks<T, Layout>;
  constexpr int kinds = (Layout::max_threads / 32 + 1) * (max_blocks + 1);  // warps, blocks
  // The smallest clusters that keep the most multiprocessors busy: 30 clusters of 4 keep 120 busy,
  // 47 clusters of 5 with two blocks on each 117.5. They have more than 8 blocks only if rows need
  // them.
  gpu::Grid grid;
  std::int64_t count = 0;
  double max_busy = 0;
  const double multiprocessors = gpu::number_of<cudaDevAttrMultiProcessorCount>(device);
  const unsigned least =
      Layout::cluster ? gpu::blocks_for(vectors, Layout::vectors * Layout::max_workers) : 1;
  const unsigned most = !Layout::cluster ? 1 : least <= 8 ? 8 : max_blocks;
  for (unsigned cluster = least; cluster <= most; ++cluster) {
    unsigned workers = Layout::max_workers;
    if constexpr (Layout::lanes == 0) {
      workers = gpu::blocks_for(vectors, Layout::vectors * cluster * 32) * 32;
    }
    const gpu::Grid next{cluster, workers + Layout::others,
                         static_cast<std::size_t>(Layout::shared_bytes(workers)),
                         Layout::cluster ? cluster : 0};
    const auto kind = static_cast<int>(next.threads.x / 32 * (max_blocks + 1) + next.cluster);
    const int clusters =
        gpu::resident<kernel, kinds>(call, next, kind, Layout::shared_bytes(Layout::max_workers));
    if (clusters == 0) continue;
    const double blocks = static_cast<double>(clusters) * cluster;
    const double busy = blocks / std::ceil(blocks / multiprocessors);
    if (busy <= max_busy) continue;
    grid = next;
    count = clusters;
    max_busy = busy;
  }
  if (count == 0) return launch_any(call, of);

  // All clusters take the same number of rows, or one less.
  const std::int64_t iterations = gpu::ceil_div(of.rows, count * Layout::rows);
  count = gpu::ceil_div(of.rows, iterations * Layout::rows);
  // Every `period`-th row begins at the same element of a vector.
  const auto period = static_cast<int>(Layout::width / std::gcd(Layout::width, of.columns));
  const std::int64_t parts = Layout::lanes == 0 && count % period != 0
                                 ? count + std::min<std::int64_t>(period, of.rows) - 1
                                 : count;
  Compute<T>* sums = nullptr;
  if (Status status = allocate(call, parts * 2 * of.columns, sums); !status.ok()) return status;
  gpu::Pace pace;
  // With vectors of 8 bytes, instructions are the limit. On an H200 they are for 16 bits, too, and
  // rows with edges and large clusters gain nothing by waiting.
  const bool is_limited_by_memory =
      Layout::vector_bytes == gpu::vector_bytes &&
      (gpu::relative_bandwidth(device) == 1 || (sizeof(T) > 2 && period == 1 && grid.cluster <= 8));
  if (is_limited_by_memory) {
    const std::int64_t bytes_of_iteration =
        of.columns * Layout::rows * static_cast<std::int64_t>(sizeof(T)) / grid.blocks.x;
    constexpr int step =
        Layout::lanes != 0 ? 20480 : 7680;  // 2 iterations of 1,000 float32, or 1,024
    Status status = gpu::set_pace(call, iterations, bytes_of_iteration, step, pace);
    if (!status.ok()) return status;
  }
  grid.blocks.x *= static_cast<unsigned>(count);
  Status status = gpu::launch(call, kernel, grid, of, sums, period, pace);
  if (!status.ok()) return status;
  return launch_add<T>(call, sums, parts, of.columns);
}

/// Rows of up to `most` whole vectors of `bytes`, each for a warp or a part of one.
template <class T, int bytes, int most>
Status launch_whole(const Call& call, const Arguments<T>& of) {
  const std::int64_t vectors = of.columns * static_cast<std::int64_t>(sizeof(T)) / bytes;
  const auto in = [&]<int lanes, int of_thread>(std::integer_sequence<int, lanes, of_thread>) {
    return launch_rows<T, Layout<T, lanes, of_thread, false, false, 0, bytes>>(call, of, vectors);
  };
  if (vectors <= 8) return in(std::integer_sequence<int, 4, 2>());
  if (vectors <= 16) return in(std::integer_sequence<int, 8, 2>());
  if constexpr (most > 32) {
    if (vectors > 64) return in(std::integer_sequence<int, 32, 4>());
    if (vectors > 32) return in(std::integer_sequence<int, 32, 2>());
  }
  return in(std::integer_sequence<int, 16, 2>());
}

template <class T>
Status launch_gradients(const Call& call, const Arguments<T>& of) {
  constexpr std::int64_t width = gpu::vector_bytes / sizeof(T);
  constexpr bool is_half = sizeof(T) == 2;
  const std::int64_t row_bytes = of.columns * static_cast<std::int64_t>(sizeof(T));
  // Rows that begin or end within a vector have edges. They cost more than smaller vectors, unless
  // a row has too many of those.
  const auto has_whole = [&](int bytes, std::int64_t most) {
    return gpu::misalignment(of.x) % bytes == 0 && row_bytes % bytes == 0 &&
           row_bytes <= most * bytes;
  };
  constexpr int max_of_8 = is_half ? 128 : 32;
  if (has_whole(16, 128)) return launch_whole<T, 16, 128>(call, of);
  if (has_whole(8, max_of_8)) return launch_whole<T, 8, max_of_8>(call, of);
  if constexpr (is_half) {
    if (has_whole(4, 32)) return launch_whole<T, 4, 32>(call, of);
  }
  const std::int64_t vectors = of.columns / width;
  const auto in = [&]<class L>(L) { return launch_rows<T, L>(call, of, vectors); };
  if (gpu::misalignment(of.x) != 0 || of.columns % width != 0) {
    if (vectors <= 32) return in(Layout<T, 16, 2, true>{});
    if (vectors <= 64) return in(Layout<T, 32, 2, true>{});
  }
  if constexpr (is_half) {
    if (vectors <= 640) return in(Layout<T, 0, 2, false, false, 320>{});
    if (vectors <= 1024) return in(Layout<T, 0, 2>{});
    return in(Layout<T, 0, 4, false, true>{});
  } else {
    if (vectors <= 2048) return in(Layout<T, 0, 4>{});
    return in(Layout<T, 0, 4, false, true>{});
  }
}

}  // namespace

Status LayerNormBackward::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto input = [&](int i) {
      return call.inputs[i].present ? static_cast<const T*>(call.inputs[i].data) : nullptr;
    };
    const std::int64_t columns = call.inputs[0].shape.back();
    if (columns == 0) return Status();
    const std::int64_t rows = call.inputs[0].size() / columns;
    if (rows == 0) return launch_add<T>(call, nullptr, 0, columns);
    const Arguments<T> of{input(0),
                          input(1),
                          input(2),
                          static_cast<T*>(call.outputs[0].data),
                          rows,
                          columns,
                          static_cast<Compute<T>>(call.real(0))};
    const std::uintptr_t past = gpu::misalignment(of.x);
    if (gpu::misalignment(of.grad_y) != past || gpu::misalignment(of.grad_x) != past) {
      return launch_any(call, of);
    }
    if constexpr (sizeof(T) == 8) {  // float64 is rare and gets few kernels
      constexpr std::int64_t width = gpu::vector_bytes / sizeof(T);
      const std::int64_t vectors = columns / width;
      if (vectors <= 64 || vectors > 2048) return launch_any(call, of);
      return launch_rows<T, Layout<T, 0, 4>>(call, of, vectors);
    } else {
      return launch_gradients<T>(call, of);
    }
  });
}

}  // namespace cudarelu::ops

#include <algorithm>

#include "cuda/launch.cuh"
#include "ops/sum_rows.h"
#include "types.h"

namespace cudarelu::ops {
namespace {

constexpr int tile_columns = 32;
constexpr int tile_rows = 8;

/// y[chunk, column] = the sum of x[row, column] over the rows of the chunk; a block takes one chunk
/// of 32 columns. No atomics: the order of the additions is fixed.
template <class T, class Out>
__global__ void __launch_bounds__(tile_columns* tile_rows)
    sum_chunk(const T* x, Out* y, std::int64_t rows, std::int64_t columns,
              std::int64_t chunk_rows) {
  using C = Compute<T>;
  __shared__ C partial[tile_rows][tile_columns];
  cuda::wait_for_previous_kernel();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * tile_columns + threadIdx.x;
  const std::int64_t first = blockIdx.y * chunk_rows;
  const std::int64_t last = first + chunk_rows < rows ? first + chunk_rows : rows;
  C total = 0;
  if (column < columns) {
    for (std::int64_t row = first + threadIdx.y; row < last; row += tile_rows) {
      total += load(x[row * columns + column]);
    }
  }
  partial[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int i = 1; i < tile_rows; ++i) total += partial[i][threadIdx.x];
  y[blockIdx.y * columns + column] = store<Out>(total);
}

template <class T, class Out>
Status launch_sum(const Call& call, const T* x, Out* y, std::int64_t rows, std::int64_t columns,
                  std::int64_t chunks) {
  const dim3 grid(cuda::blocks_for(columns, tile_columns), static_cast<unsigned>(chunks));
  return cuda::launch(call, sum_chunk<T, Out>, {grid, dim3(tile_columns, tile_rows)}, x, y, rows,
                      columns, (rows + chunks - 1) / chunks);
}

}  // namespace

Status SumRows::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const std::int64_t columns = call.outputs[0].size();
    if (columns == 0) return Status();
    const std::int64_t rows = call.inputs[0].size() / columns;
    // Enough blocks for every multiprocessor, each with rows enough to be worth it.
    const std::int64_t wanted = 2048 / cuda::blocks_for(columns, tile_columns);
    const std::int64_t chunks = std::clamp<std::int64_t>(wanted, 1, rows / (4 * tile_rows) + 1);
    if (chunks == 1) return launch_sum(call, x, y, rows, columns, 1);
    const std::size_t bytes = static_cast<std::size_t>(chunks * columns) * sizeof(C);
    auto* partial = static_cast<C*>(call.execution.allocate(bytes));
    if (partial == nullptr) {
      return Status(Status::Code::out_of_memory,
                    "sum_rows: no workspace of " + std::to_string(bytes) + " bytes");
    }
    Status status = launch_sum(call, x, partial, rows, columns, chunks);
    if (!status.ok()) return status;
    return launch_sum(call, static_cast<const C*>(partial), y, chunks, columns, 1);
  });
}

}  // namespace cudarelu::ops

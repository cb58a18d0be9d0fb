// Reads grad_y and x once. A group of threads has a row at a time: while it reduces and writes one
// row, the next ones are on their way to shared memory. Each thread adds up the terms of
// grad_weight of its columns in registers; a second kernel adds up the sums of the blocks, in a
// fixed order. Rows that are too long, or do not begin at boundaries of vectors, are read again for
// grad_weight.
#include <algorithm>
#include <bit>

#include "cudarelu/rows.h"
#include "rms_norm_backward.h"

namespace llm {

namespace {

template <class T>
struct Arguments {
  const T* grad_y;
  const T* x;
  const T* weight;  // or nullptr
  T* grad_x;
  std::int64_t rows;
  std::int64_t columns;
  Compute<T> eps;
};

/// The sums over a row, and those of `lanes` neighbours in a warp.
template <class C>
struct Sums {
  C squares = 0;   // of x
  C products = 0;  // of grad_y * weight * x

  __device__ void add(C x, C g) {
    squares = gpu::fused(x, x, squares);
    products = gpu::fused(g, x, products);
  }
  template <int lanes>
  __device__ Sums of_lanes() const {
    return {gpu::sum_in_warp<lanes>(squares), gpu::sum_in_warp<lanes>(products)};
  }
  /// The same for all threads of a block. `turn` counts the calls.
  __device__ Sums of_block(int turn) const {
    __shared__ Sums
        of_warps[2][32];  // of this turn and the one before, which others may still read
    const Sums sums = of_lanes<32>();
    if (threadIdx.x % 32 == 0) of_warps[turn % 2][threadIdx.x / 32] = sums;
    __syncthreads();
    const bool is_there = threadIdx.x % 32 < blockDim.x / 32;
    return (is_there ? of_warps[turn % 2][threadIdx.x % 32] : Sums{}).template of_lanes<32>();
  }
};

/// grad_x of a row: scale * (g - normal * mean(g * normal)), where g is grad_y * weight and normal
/// is x * scale.
template <class C>
struct RowGradient {
  C scale;
  C slope;

  __device__ RowGradient(const Sums<C>& sums, std::int64_t columns, C eps) {
    const C share = 1 / static_cast<C>(columns);
    scale = gpu::reciprocal_root(gpu::fused(sums.squares, share, eps));
    // 0 for squares that overflow, where the products may overflow too.
    slope = scale == 0 ? C(0) : -sums.products * share * scale;
  }
  __device__ C operator()(C normal, C g) const { return scale * gpu::fused(normal, slope, g); }
};

/// `lanes` threads of a warp have a row; 0: the whole block has one, of up to `threads` threads.
/// Each thread has up to `vectors` vectors of it.
template <int lanes_, int vectors_, int threads_>
struct Layout {
  static constexpr int lanes = lanes_;
  static constexpr int vectors = vectors_;
  static constexpr int threads = threads_;
  static constexpr int stages = 3;                    // rows of a group in shared memory
  static constexpr int slots = 2 * vectors * stages;  // vectors of a thread there
};

/// Writes grad_x, and the sums of the terms of grad_weight over the rows of each block to
/// sums[gridDim.x, columns].
template <class T, class L>
__global__ void __launch_bounds__(L::threads)
    gradients(Arguments<T> of, Compute<T>* sums, gpu::Pace pace) {
  using C = Compute<T>;
  constexpr int width = gpu::vector_bytes / sizeof(T);
  using Vector = gpu::RowVector<T, width>;
  extern __shared__ uint4 staged[];

  const int lanes = L::lanes == 0 ? static_cast<int>(blockDim.x) : L::lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int groups = static_cast<int>(blockDim.x) / lanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * groups;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * groups;
  const std::int64_t own = first + static_cast<int>(threadIdx.x) / lanes;
  const auto column = [&](int v) { return (v * lanes + lane) * width; };
  const auto slot = [&](int stage, int v, int input) {  // only this thread uses it
    const int number = (stage * L::vectors + v) * 2 + input;
    return reinterpret_cast<Vector*>(staged + number * blockDim.x + threadIdx.x);
  };
  const auto fetch = [&](int turn) {
    const std::int64_t row = own + turn * step;
#pragma unroll
    for (int v = 0; v < L::vectors; ++v) {
      const bool valid = row < of.rows && column(v) < of.columns;
      const std::int64_t at = valid ? row * of.columns + column(v) : 0;
      gpu::copy_async<16>(slot(turn % L::stages, v, 0), of.grad_y + at, valid);
      gpu::copy_async<16>(slot(turn % L::stages, v, 1), of.x + at, valid);
    }
    gpu::commit_copies();
  };

  gpu::wait_for_previous_kernel();
#pragma unroll
  for (int turn = 0; turn < L::stages - 1; ++turn) fetch(turn);
  Vector weights[L::vectors];
#pragma unroll
  for (int v = 0; v < L::vectors; ++v) {
    weights[v].fill(store<T>(1));
    if (of.weight != nullptr && column(v) < of.columns) {
#pragma unroll
      for (int j = 0; j < width; ++j) weights[v].set(j, of.weight[column(v) + j]);
    }
  }
  C grad_weight[L::vectors * width] = {};
  gpu::Pace::PacedSteps steps(pace);
  // All groups of a block take the same number of turns, so that warps stay complete.
  for (int turn = 0; first + turn * step < of.rows; ++turn) {
    if (L::lanes != 0 || threadIdx.x < 32) steps.begin(turn, threadIdx.x == 0);
    fetch(turn + L::stages - 1);
    gpu::wait_for_copies<L::stages - 1>();
    const int stage = turn % L::stages;
    Sums<C> part;
#pragma unroll
    for (int v = 0; v < L::vectors; ++v) {  // vectors outside of the row are 0
      const Vector grad_y = *slot(stage, v, 0);
      const Vector x = *slot(stage, v, 1);
#pragma unroll
      for (int j = 0; j < width; ++j) part.add(load(x[j]), load(grad_y[j]) * load(weights[v][j]));
      weights[v].stay_packed();
    }
    const auto row_sums = [&] {
      if constexpr (L::lanes == 0) {
        return part.of_block(turn);
      } else {
        return part.template of_lanes<L::lanes>();
      }
    }();
    const RowGradient<C> gradient(row_sums, of.columns, of.eps);
    const std::int64_t row = own + turn * step;
#pragma unroll
    for (int v = 0; v < L::vectors; ++v) {
      const Vector grad_y = *slot(stage, v, 0);
      const Vector x = *slot(stage, v, 1);
      Vector result;
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const C normal = load(x[j]) * gradient.scale;
        C& sum = grad_weight[v * width + j];
        sum = gpu::fused(load(grad_y[j]), normal, sum);
        result.set(j, store<T>(gradient(normal, load(grad_y[j]) * load(weights[v][j]))));
      }
      weights[v].stay_packed();
      if (row < of.rows && column(v) < of.columns) {
        result.write_to(of.grad_x + row * of.columns + column(v));
      }
    }
  }
  gpu::wait_for_copies<0>();

  // Adds up the sums of the groups, which have the shared memory to themselves now.
  const auto columns = static_cast<int>(of.columns);
  C* const of_groups = reinterpret_cast<C*>(staged);
  __syncthreads();
#pragma unroll
  for (int v = 0; v < L::vectors; ++v) {
    if (column(v) >= columns) continue;
#pragma unroll
    for (int j = 0; j < width; ++j) {
      of_groups[static_cast<int>(threadIdx.x) / lanes * columns + column(v) + j] =
          grad_weight[v * width + j];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += static_cast<int>(blockDim.x)) {
    C total = 0;
    for (int group = 0; group < groups; ++group) total += of_groups[group * columns + i];
    sums[static_cast<std::int64_t>(blockIdx.x) * columns + i] = total;
  }
}

/// grad_x of any rows, which a block takes gridDim.x apart, and the scale of each row.
template <class T>
__global__ void __launch_bounds__(256) any_gradients(Arguments<T> of, Compute<T>* scales) {
  using C = Compute<T>;
  gpu::wait_for_previous_kernel();
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < of.rows; row += gridDim.x, ++turn) {
    const std::int64_t offset = row * of.columns;
    const auto g = [&](std::int64_t i) {
      const C grad_y = load(of.grad_y[offset + i]);
      return of.weight == nullptr ? grad_y : grad_y * load(of.weight[i]);
    };
    Sums<C> part;
    for (std::int64_t i = threadIdx.x; i < of.columns; i += blockDim.x) {
      part.add(load(of.x[offset + i]), g(i));
    }
    const RowGradient<C> gradient(part.of_block(turn), of.columns, of.eps);
    for (std::int64_t i = threadIdx.x; i < of.columns; i += blockDim.x) {
      const C normal = load(of.x[offset + i]) * gradient.scale;
      of.grad_x[offset + i] = store<T>(gradient(normal, g(i)));
    }
    if (threadIdx.x == 0) scales[row] = gradient.scale;
  }
}

constexpr int tile_columns = 32;
constexpr int any_tile_rows = 8;
constexpr int add_tile_rows = 32;  // there are few blocks: many loads of each must be in flight

/// to[i, column] = the sum of term(row, column) over part i of gridDim.y parts of the rows.
template <int tile_rows, class C, class Out, class Term>
__device__ void sum_columns(Out* to, std::int64_t rows, std::int64_t columns, const Term& term) {
  __shared__ C partial[tile_rows][tile_columns];
  gpu::wait_for_previous_kernel();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * tile_columns + threadIdx.x;
  C total = 0;
  if (column < columns) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * tile_rows;
#pragma unroll 8
    for (std::int64_t row = blockIdx.y * tile_rows + threadIdx.y; row < rows; row += step) {
      total += term(row, column);
    }
  }
  partial[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int i = 1; i < tile_rows; ++i) total += partial[i][threadIdx.x];
  to[blockIdx.y * columns + column] = store<Out>(total);
}

template <class T>
__global__ void __launch_bounds__(tile_columns* any_tile_rows)
    any_terms(Arguments<T> of, const Compute<T>* scales, Compute<T>* sums) {
  sum_columns<any_tile_rows, Compute<T>>(
      sums, of.rows, of.columns, [&](std::int64_t row, std::int64_t column) {
        const std::int64_t at = row * of.columns + column;
        return load(of.grad_y[at]) * load(of.x[at]) * scales[row];
      });
}

template <class T>
__global__ void __launch_bounds__(tile_columns* add_tile_rows)
    add_sums(const Compute<T>* sums, T* grad_weight, std::int64_t count, std::int64_t columns) {
  sum_columns<add_tile_rows, Compute<T>>(
      grad_weight, count, columns,
      [&](std::int64_t row, std::int64_t column) { return sums[row * columns + column]; });
}

/// The grid for sum_columns().
template <int tile_rows>
gpu::Grid tiles_of(std::int64_t columns, std::int64_t parts) {
  return {dim3(gpu::blocks_for(columns, tile_columns), static_cast<unsigned>(parts)),
          dim3(tile_columns, tile_rows)};
}

/// Adds up `count` rows of sums to grad_weight.
template <class T>
Status launch_add(const Call& call, const Compute<T>* sums, std::int64_t count,
                  std::int64_t columns) {
  return gpu::launch(call, add_sums<T>, tiles_of<add_tile_rows>(columns, 1), sums,
                     static_cast<T*>(call.outputs[1].data), count, columns);
}

template <class T>
Status launch_any(const Call& call, const Arguments<T>& of) {
  using C = Compute<T>;
  const std::int64_t parts = std::clamp<std::int64_t>(
      2048 / gpu::blocks_for(of.columns, tile_columns), 1, of.rows / 32 + 1);
  C* scales = nullptr;
  C* sums = nullptr;
  if (Status status = allocate(call, of.rows, scales); !status.ok()) return status;
  if (Status status = allocate(call, parts * of.columns, sums); !status.ok()) return status;
  const gpu::Grid rows{gpu::blocks_for(std::min(of.rows, gpu::largest_grid), 1), 256};
  if (Status status = gpu::launch(call, any_gradients<T>, rows, of, scales); !status.ok()) {
    return status;
  }
  const gpu::Grid tiles = tiles_of<any_tile_rows>(of.columns, parts);
  if (Status status = gpu::launch(call, any_terms<T>, tiles, of, scales, sums); !status.ok()) {
    return status;
  }
  return launch_add<T>(call, sums, parts, of.columns);
}

template <class T, class L>
Status launch_in(const Call& call, const Arguments<T>& of) {
  constexpr auto kernel = gradients<T, L>;
  constexpr int width = gpu::vector_bytes / sizeof(T);
  const std::int64_t vectors = of.columns / width;
  gpu::Grid grid{1, L::threads};
  if constexpr (L::lanes == 0) {
    grid.threads = 32 * gpu::blocks_for(vectors, 32 * L::vectors);
  }
  grid.shared_bytes = std::size_t{L::slots} * grid.threads.x * gpu::vector_bytes;
  constexpr int max_bytes = L::slots * L::threads * gpu::vector_bytes;
  const std::int64_t groups = L::lanes == 0 ? 1 : L::threads / std::max(L::lanes, 1);
  const std::int64_t resident = gpu::resident<kernel, L::threads / 32 + 1>(
      call, grid, static_cast<int>(grid.threads.x / 32), max_bytes);
  if (resident == 0) return launch_any(call, of);  // the device has too little shared memory
  // Every block gets the same number of rows, or one less for each of its groups.
  const std::int64_t turns = gpu::ceil_div(of.rows, resident * groups);
  const std::int64_t blocks = gpu::ceil_div(of.rows, turns * groups);
  grid.blocks = static_cast<unsigned>(blocks);
  Compute<T>* sums = nullptr;
  if (Status status = allocate(call, blocks * of.columns, sums); !status.ok()) return status;
  gpu::Pace pace;
  if constexpr (L::lanes != 4) {  // else instructions are the limit
    const std::int64_t bytes_of_turn = groups * of.columns * static_cast<std::int64_t>(sizeof(T));
    constexpr int step = (L::lanes != 0 ? 16 : 8) * 1024;
    Status status = gpu::set_pace(call, turns, bytes_of_turn, step, pace);
    if (!status.ok()) return status;
  }
  if (Status status = gpu::launch(call, kernel, grid, of, sums, pace); !status.ok()) return status;
  return launch_add<T>(call, sums, blocks, of.columns);
}

}  // namespace

Status RmsNormBackward::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto input = [&](std::size_t i) {
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
    constexpr std::int64_t width = gpu::vector_bytes / sizeof(T);
    const std::int64_t vectors = columns / width;
    const bool even = columns % width == 0 && gpu::misalignment(of.grad_y) == 0 &&
                      gpu::misalignment(of.x) == 0 && gpu::misalignment(of.grad_x) == 0;
    if (!even || vectors > 2048) return launch_any(call, of);
    if (vectors <= 8) return launch_in<T, Layout<4, 2, 256>>(call, of);
    if (vectors <= 16) return launch_in<T, Layout<8, 2, 256>>(call, of);
    if (vectors <= 32) return launch_in<T, Layout<16, 2, 256>>(call, of);
    if (vectors <= 64) return launch_in<T, Layout<32, 2, 256>>(call, of);
    if (vectors <= 512) return launch_in<T, Layout<0, 2, 256>>(call, of);
    if (vectors <= 1024) return launch_in<T, Layout<0, 2, 512>>(call, of);
    return launch_in<T, Layout<0, 4, 512>>(call, of);
  });
}

}  // namespace llm

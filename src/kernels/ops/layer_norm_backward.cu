// Blocks, or clusters of them, take one row after the other, so that each input is read once: they
// keep the sums of the weight's and the bias's gradients over their rows, which a second kernel
// adds up in a fixed order. While they work on a row, the next ones are on their way to shared
// memory; each thread asks for what it will read itself.
//
// Rows that cannot be read so, since their vectors are not aligned, are too long or the device is
// too old, are read once for grad_x and once more for the sums.
#include <algorithm>

#include "cuda/alignment.h"
#include "cuda/async_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/moments.cuh"
#include "ops/layer_norm_backward.h"
#include "workspace.h"

#if __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>

#include <cuda/ptx>
#endif

namespace cudarelu::ops {
namespace {

#if __CUDA_ARCH__ >= 900
namespace ptx = ::cuda::ptx;
#endif

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

/// What the gradient of a row needs to know of it, where g is grad_y * weight.
template <class C>
struct Sums {
  cuda::Moments<C> x;
  C g = 0;        // the sum of g
  C product = 0;  // the sum of g * (x - base)

  /// Adds an element, but for the count.
  __device__ void add(C x_i, C g_i) {
    x.add(x_i);
    g += g_i;
    product = cuda::fused(g_i, x_i - x.base, product);
  }

  __device__ void add(Sums other) {
    if (x.count == 0) x.base = other.x.base;
    other.product = cuda::fused(other.g, other.x.base - x.base, other.product);
    other.x.move_to(x.base);
    x.sum += other.x.sum;
    x.squares += other.x.squares;
    x.count += other.x.count;
    g += other.g;
    product += other.product;
  }

  /// Those of `lanes` neighbours in a warp, which have `total` elements, for each of them.
  template <int lanes>
  __device__ Sums of_lanes(C total) const {
    Sums all;
    all.x = x.template of_lanes<lanes>(total);
    all.g = cuda::sum_in_warp<lanes>(g);
    all.product = cuda::sum_in_warp<lanes>(cuda::fused(g, x.base - all.x.base, product));
    return all;
  }
  /// The same where the total is not known.
  __device__ Sums of_warp() const { return of_lanes<32>(cuda::sum_in_warp(x.count)); }
};

/// What grad_x of a row is computed by.
template <class C>
struct RowGradient {
  cuda::Normaliser<C> normalised;
  C mean;     // of g
  C product;  // the mean of g * normalised x

  /// `share` is 1 / columns.
  __device__ RowGradient(const Sums<C>& sums, C share, C eps)
      : normalised(sums.x, share, eps),
        mean(sums.g * share),
        product(cuda::fused(normalised.scale, sums.product, normalised.shift * sums.g) * share) {}

  __device__ C operator()(C normal, C g) const {
    return cuda::fused(-normal, product, g - mean) * normalised.scale;
  }
};

// Rows in shared memory

/// How a block divides rows: `lanes` threads of a warp have a row, or, for 0, all threads of the
/// block or cluster; each has `vectors` vectors of it.
template <int lanes_, int vectors_, bool cluster_ = false>
struct Layout {
  static constexpr int lanes = lanes_;
  static constexpr int vectors = vectors_;
  static constexpr bool cluster = cluster_;
  static constexpr int most_threads = lanes == 0 ? 512 : 256;
  static constexpr int stages = vectors <= 2 ? 3 : vectors <= 4 ? 2 : 1;  // rows in shared memory
  static constexpr bool in_registers = vectors <= 2;  // while they are worked on

  static constexpr int shared_bytes(int threads) {
    const int of_weight = in_registers ? 0 : vectors;
    return (stages * vectors * 2 + of_weight) * threads * cuda::vector_bytes;
  }
};

constexpr int most_blocks = 8;  // in a cluster: what every device with clusters can do

/// Exchanges the sums of warps that have a row together.
template <class C, class Layout>
class Exchange {
  static constexpr int most_warps = Layout::most_threads / 32;

 public:
#if __CUDA_ARCH__ >= 900
  __device__ Exchange() {
    if constexpr (Layout::cluster) {
      if (threadIdx.x == 0) {
        for (int i = 0; i < turns; ++i) ptx::mbarrier_init(barrier(i), 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
      }
      Cluster::sync();
    }
  }
#endif

  /// The sums of the row, of `total` elements, from those of its warps, for each thread; `turn`
  /// counts the rows.
  __device__ Sums<C> operator()(int turn, const Sums<C>& of_warp, C total) const {
    const int warps = blockDim.x / 32;
    const int lane = threadIdx.x % 32;
    int count = warps;
#if __CUDA_ARCH__ >= 900
    if constexpr (Layout::cluster) {
      const int blocks = Cluster::num_blocks();
      count *= blocks;
      constexpr int words = sizeof(Sums<C>) / sizeof(std::int64_t);
      if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared,
                                       barrier(turn), count * static_cast<int>(sizeof(Sums<C>)));
      }
      if (lane < blocks) {
        Sums<C>* const place = values(turn) + Cluster::block_rank() * warps + threadIdx.x / 32;
        auto* const to = reinterpret_cast<std::int64_t*>(Cluster::map_shared_rank(place, lane));
        const auto* const from = reinterpret_cast<const std::int64_t*>(&of_warp);
#pragma unroll
        for (int i = 0; i < words; ++i) {
          ptx::st_async(to + i, from[i], Cluster::map_shared_rank(barrier(turn), lane));
        }
      }
      while (!ptx::mbarrier_try_wait_parity(barrier(turn), turn / turns % 2)) {
      }
    } else
#endif
    {
      if (lane == 0) values(turn)[threadIdx.x / 32] = of_warp;
      __syncthreads();
    }
    Sums<C> sums;
    for (int i = lane; i < count; i += 32) sums.add(values(turn)[i]);
    return sums.template of_lanes<32>(total);
  }

 private:
  /// Who sends the sums of a row has those of the row before from everybody, who had then read
  /// those of the row before that.
  static constexpr int turns = Layout::cluster ? 4 : 2;

  __device__ static Sums<C>* values(int turn) {
    __shared__ Sums<C> values[turns][most_warps * (Layout::cluster ? most_blocks : 1)];
    return values[turn % turns];
  }
#if __CUDA_ARCH__ >= 900
  using Cluster = cooperative_groups::cluster_group;
  __device__ static std::uint64_t* barrier(int turn) {
    __shared__ std::uint64_t barriers[turns];
    return &barriers[turn % turns];
  }
#endif
};

/// Writes grad_x, and the sums of the gradients of weight and bias over the rows of each block or
/// cluster: [blocks, 2, columns].
template <class T, class Layout>
__global__ void __launch_bounds__(Layout::most_threads)
    rows_of_blocks(Arguments<T> of, Compute<T>* sums_of_rows) {
  using C = Compute<T>;
  constexpr int width = cuda::vector_bytes / sizeof(T);
  constexpr int vectors = Layout::vectors;
  using Vector = cuda::RowVector<T, width>;
  extern __shared__ uint4 staged[];

  int lane = threadIdx.x;  // of those that have a row
  int lanes = blockDim.x;  // in the block
  std::int64_t row = blockIdx.x;
  std::int64_t step = gridDim.x;
  int first = 0;  // vector of the block
  if constexpr (Layout::lanes != 0) {
    lane = threadIdx.x % Layout::lanes;
    lanes = Layout::lanes;
    row = row * (Layout::most_threads / Layout::lanes) + threadIdx.x / Layout::lanes;
    step *= Layout::most_threads / Layout::lanes;
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (Layout::cluster) {
    using Cluster = cooperative_groups::cluster_group;
    row /= Cluster::num_blocks();
    step /= Cluster::num_blocks();
    first = Cluster::block_rank() * blockDim.x * vectors;
  }
#endif
  const std::int64_t sums_row = Layout::lanes != 0 ? blockIdx.x : row;
  const int count = static_cast<int>(of.columns / width);
  const auto place = [&](int v) { return first + v * lanes + lane; };
  const auto inside = [&](int v) { return place(v) < count; };
  const auto slot = [&](int stage, int v, int input) {
    return reinterpret_cast<Vector*>(staged) + ((stage * vectors + v) * 2 + input) * blockDim.x +
           threadIdx.x;
  };
  const auto fetch = [&](std::int64_t row, int stage, int v) {
    if (row >= of.rows || !inside(v)) return;
    const std::int64_t at = row * of.columns + place(v) * width;
    cuda::copy_async<cuda::vector_bytes>(slot(stage, v, 0), of.grad_y + at, true);
    cuda::copy_async<cuda::vector_bytes>(slot(stage, v, 1), of.x + at, true);
  };
  const bool weight_is_aligned =
      reinterpret_cast<std::uintptr_t>(of.weight) % cuda::vector_bytes == 0;
  const auto weight_of = [&](int v) {
    Vector weight;
    if (of.weight == nullptr || !inside(v)) {
      weight.fill(store<T>(1));
    } else if (weight_is_aligned) {
      weight = reinterpret_cast<const Vector*>(of.weight)[place(v)];
    } else {
#pragma unroll
      for (int j = 0; j < width; ++j) weight.set(j, of.weight[place(v) * width + j]);
    }
    return weight;
  };

  const auto total = static_cast<C>(of.columns);
  const C share = 1 / total;
  const Exchange<C, Layout> exchange{};
  cuda::wait_for_previous_kernel();
#pragma unroll
  for (int stage = 0; stage < Layout::stages; ++stage) {
    for (int v = 0; v < vectors; ++v) fetch(row + stage * step, stage, v);
    cuda::commit_copies();
  }
  Vector weights[Layout::in_registers ? vectors : 1];
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    (Layout::in_registers ? weights[v] : *slot(Layout::stages, 0, v)) = weight_of(v);
  }
  C grad_weight[vectors * width] = {};
  C grad_bias[vectors * width] = {};

  // The threads of a warp take the same number of turns: those past the end have nothing to do.
  const std::int64_t first_row = Layout::lanes != 0 ? row - threadIdx.x / Layout::lanes : row;
  const int turns = static_cast<int>((of.rows - first_row + step - 1) / step);
  for (int turn = 0; turn < turns; ++turn, row += step) {
    const int stage = turn % Layout::stages;
    const bool has_row = Layout::lanes == 0 || row < of.rows;
    cuda::wait_for_copies<Layout::stages - 1>();
    Vector grad_y[Layout::in_registers ? vectors : 1];
    Vector x[Layout::in_registers ? vectors : 1];
    if constexpr (Layout::in_registers) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        grad_y[v] = *slot(stage, v, 0);
        x[v] = *slot(stage, v, 1);
      }
    }
    // Calls use(v, grad_y, x, weight) for the vectors of the row.
    const auto for_each_vector = [&](const auto& use) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (!has_row || !inside(v)) continue;
        if constexpr (Layout::in_registers) {
          use(v, grad_y[v], x[v], weights[v]);
        } else {
          use(v, *slot(stage, v, 0), *slot(stage, v, 1), *slot(Layout::stages, 0, v));
        }
      }
    };

    Sums<C> own;
    for_each_vector([&](int v, const Vector& grad_y, const Vector& x, const Vector& weight) {
      if (v == 0) {
        C total = 0;
#pragma unroll
        for (int j = 0; j < width; ++j) total += load(x[j]);
        own.x.base = total / width;
      }
      own.x.count += width;
#pragma unroll
      for (int j = 0; j < width; ++j) own.add(load(x[j]), load(grad_y[j]) * load(weight[j]));
    });
    if constexpr (Layout::lanes != 0) {
      own = own.template of_lanes<Layout::lanes>(total);
    } else {
      own = exchange(turn, own.of_warp(), total);
    }
    const RowGradient<C> gradient(own, share, of.eps);

    T* const grad_x = of.grad_x + row * of.columns;
    for_each_vector([&](int v, Vector grad_y, Vector x, const Vector& weight) {
      grad_y.stay_packed();
      x.stay_packed();
      Vector result;
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const C g = load(grad_y[j]);
        const C normal = gradient.normalised(load(x[j]));
        C& sum = grad_weight[v * width + j];
        sum = cuda::fused(g, normal, sum);
        grad_bias[v * width + j] += g;
        result.set(j, store<T>(gradient(normal, g * load(weight[j]))));
      }
      reinterpret_cast<Vector*>(grad_x)[place(v)] = result;
    });
#pragma unroll
    for (int v = 0; v < vectors; ++v) fetch(row + Layout::stages * step, stage, v);
    cuda::commit_copies();
  }

  C* const sums = sums_of_rows + sums_row * 2 * of.columns;
  if constexpr (Layout::lanes == 0) {
#pragma unroll
    for (int i = 0; i < vectors * width; ++i) {
      if (!inside(i / width)) continue;
      const std::int64_t column = place(i / width) * width + i % width;
      sums[column] = grad_weight[i];
      sums[of.columns + column] = grad_bias[i];
    }
  } else {
    // Rows of one block are added up in shared memory.
    constexpr int groups = Layout::most_threads / Layout::lanes;
    constexpr int columns = Layout::lanes * vectors * width;
    C* const all = reinterpret_cast<C*>(staged);
    cuda::wait_for_copies<0>();
    for (C* of_threads : {grad_weight, grad_bias}) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < vectors * width; ++i) {
        all[threadIdx.x / Layout::lanes * columns + place(i / width) * width + i % width] =
            of_threads[i];
      }
      __syncthreads();
      for (int column = threadIdx.x; column < of.columns; column += Layout::most_threads) {
        C total = 0;
        for (int group = 0; group < groups; ++group) total += all[group * columns + column];
        sums[(of_threads == grad_weight ? 0 : of.columns) + column] = total;
      }
    }
  }
}

constexpr int tile_columns = 32;
constexpr int tile_rows = 32;

/// Adds up the sums of `count` blocks: those of grad_weight, then those of grad_bias.
template <class T>
__global__ void __launch_bounds__(tile_columns* tile_rows)
    add_sums(const Compute<T>* sums, T* grad_weight, T* grad_bias, int count,
             std::int64_t columns) {
  using C = Compute<T>;
  __shared__ C partial[tile_rows][tile_columns];
  cuda::wait_for_previous_kernel();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * tile_columns + threadIdx.x;
  C total = 0;
  if (column < 2 * columns) {
#pragma unroll 4
    for (int i = threadIdx.y; i < count; i += tile_rows) total += sums[i * 2 * columns + column];
  }
  partial[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || column >= 2 * columns) return;
  for (int i = 1; i < tile_rows; ++i) total += partial[i][threadIdx.x];
  T* const to = column < columns ? grad_weight + column : grad_bias + (column - columns);
  *to = store<T>(total);
}

// Rows of any kind

/// grad_x of a row in each block, and what its elements are normalised by.
template <class T>
__global__ void __launch_bounds__(256)
    row_gradients(Arguments<T> of, cuda::Normaliser<Compute<T>>* normalisers) {
  using C = Compute<T>;
  cuda::wait_for_previous_kernel();
  const std::int64_t offset = blockIdx.x * of.columns;
  const auto g = [&](std::int64_t i) {
    const C grad_y = load(of.grad_y[offset + i]);
    return of.weight == nullptr ? grad_y : grad_y * load(of.weight[i]);
  };
  Sums<C> own;
  if (threadIdx.x < of.columns) own.x.base = load(of.x[offset + threadIdx.x]);
  for (std::int64_t i = threadIdx.x; i < of.columns; i += blockDim.x) {
    own.add(load(of.x[offset + i]), g(i));
    own.x.count += 1;
  }
  const Exchange<C, Layout<0, 1>> exchange{};
  const auto total = static_cast<C>(of.columns);
  const RowGradient<C> gradient(exchange(0, own.of_warp(), total), 1 / total, of.eps);
  for (std::int64_t i = threadIdx.x; i < of.columns; i += blockDim.x) {
    const C normal = gradient.normalised(load(of.x[offset + i]));
    of.grad_x[offset + i] = store<T>(gradient(normal, g(i)));
  }
  if (threadIdx.x == 0) normalisers[blockIdx.x] = gradient.normalised;
}

constexpr int chunk_rows = 8;  // of a block at a time

/// The sums over every gridDim.y-th eight rows: [gridDim.y, 2, columns].
template <class T>
__global__ void __launch_bounds__(tile_columns* chunk_rows)
    sum_chunks(Arguments<T> of, const cuda::Normaliser<Compute<T>>* normalisers, Compute<T>* sums) {
  using C = Compute<T>;
  __shared__ C partial[2][chunk_rows][tile_columns];
  cuda::wait_for_previous_kernel();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * tile_columns + threadIdx.x;
  C grad_weight = 0;
  C grad_bias = 0;
  if (column < of.columns) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * chunk_rows;
    for (std::int64_t row = blockIdx.y * chunk_rows + threadIdx.y; row < of.rows; row += step) {
      const C g = load(of.grad_y[row * of.columns + column]);
      grad_weight =
          cuda::fused(g, normalisers[row](load(of.x[row * of.columns + column])), grad_weight);
      grad_bias += g;
    }
  }
  partial[0][threadIdx.y][threadIdx.x] = grad_weight;
  partial[1][threadIdx.y][threadIdx.x] = grad_bias;
  __syncthreads();
  if (threadIdx.y > 1 || column >= of.columns) return;
  C total = 0;
  for (int i = 0; i < chunk_rows; ++i) total += partial[threadIdx.y][i][threadIdx.x];
  sums[(blockIdx.y * 2 + threadIdx.y) * of.columns + column] = total;
}

template <class T>
Status launch_add(const Call& call, const Compute<T>* sums, std::int64_t count,
                  std::int64_t columns) {
  return cuda::launch(call, add_sums<T>,
                      {cuda::blocks_for(2 * columns, tile_columns), dim3(tile_columns, tile_rows)},
                      sums, static_cast<T*>(call.outputs[1].data),
                      static_cast<T*>(call.outputs[2].data), static_cast<int>(count), columns);
}

template <class T>
Status launch_any(const Call& call, const Arguments<T>& of) {
  using C = Compute<T>;
  const unsigned tiles = cuda::blocks_for(of.columns, tile_columns);
  const std::int64_t chunks = std::clamp<std::int64_t>(2048 / tiles, 1, of.rows / 32 + 1);
  cuda::Normaliser<C>* normalisers = nullptr;
  if (Status status = allocate(call, of.rows, normalisers); !status.ok()) return status;
  C* sums = nullptr;
  if (Status status = allocate(call, chunks * 2 * of.columns, sums); !status.ok()) return status;
  const auto rows = static_cast<unsigned>(of.rows);
  Status for_rows = cuda::launch(call, row_gradients<T>, {rows, 256}, of, normalisers);
  if (!for_rows.ok()) return for_rows;
  const dim3 blocks(tiles, static_cast<unsigned>(chunks));
  Status for_chunks = cuda::launch(call, sum_chunks<T>, {blocks, dim3(tile_columns, chunk_rows)},
                                   of, normalisers, sums);
  if (!for_chunks.ok()) return for_chunks;
  return launch_add<T>(call, sums, chunks, of.columns);
}

/// How many blocks, or clusters, of the kernel the call's device runs at a time: 0 where it cannot.
template <class T, class Layout>
int resident(const Call& call, const cuda::Grid& grid) {
  // By the warps of a block or the blocks of a cluster.
  static cuda::DeviceNumbers<Layout::most_threads / 32 + 1> numbers;
  const auto kernel = rows_of_blocks<T, Layout>;
  const auto ask = [&](int& number) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             Layout::shared_bytes(Layout::most_threads));
    if (error != cudaSuccess) return error;
    if constexpr (Layout::cluster) {
      return cuda::with_configuration(call, grid, [&](const cudaLaunchConfig_t& config) {
        return cudaOccupancyMaxActiveClusters(&number, kernel, &config);
      });
    }
    int processors = 0;
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount,
                                   call.execution.device_index);
    if (error != cudaSuccess) return error;
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &number, kernel, static_cast<int>(grid.threads.x), grid.shared_bytes);
    number *= processors;
    return error;
  };
  const int index = static_cast<int>(Layout::cluster ? grid.cluster : grid.threads.x / 32);
  int count = 0;
  if (numbers.get(call.execution.device_index, index, count, ask) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

template <class T>
Status launch_gradients(const Call& call, const Arguments<T>& of) {
  constexpr int width = cuda::vector_bytes / sizeof(T);
  const auto in_blocks = [&]<class Layout>(Layout, unsigned cluster) -> Status {
    const std::int64_t vectors = of.columns / width;
    cuda::Grid grid{cluster, Layout::most_threads};
    if constexpr (Layout::cluster) grid.cluster = cluster;
    std::int64_t rows_of_block = 1;
    if constexpr (Layout::lanes == 0) {
      const std::int64_t parts = Layout::vectors * cluster;
      const std::int64_t threads = (vectors + parts - 1) / parts;
      if (threads < Layout::most_threads) grid.threads = cuda::blocks_for(threads, 32) * 32;
    } else {
      rows_of_block = Layout::most_threads / Layout::lanes;
    }
    grid.shared_bytes = Layout::shared_bytes(grid.threads.x);
    std::int64_t count = resident<T, Layout>(call, grid);
    if (count == 0) return launch_any(call, of);
    // All take the same number of rows, or one less.
    const std::int64_t turns = (of.rows + count * rows_of_block - 1) / (count * rows_of_block);
    count = (of.rows + turns * rows_of_block - 1) / (turns * rows_of_block);
    Compute<T>* sums = nullptr;
    if (Status status = allocate(call, count * 2 * of.columns, sums); !status.ok()) return status;
    grid.blocks = static_cast<unsigned>(count) * cluster;
    Status status = cuda::launch(call, rows_of_blocks<T, Layout>, grid, of, sums);
    if (!status.ok()) return status;
    return launch_add<T>(call, sums, count, of.columns);
  };
  const bool aligned = cuda::misalignment(of.grad_y) == 0 && cuda::misalignment(of.x) == 0 &&
                       cuda::misalignment(of.grad_x) == 0;
  if (!aligned || of.columns % width != 0) return launch_any(call, of);
  const std::int64_t vectors = of.columns / width;
  if (vectors <= 8) return in_blocks(Layout<8, 1>{}, 1);
  if (vectors <= 16) return in_blocks(Layout<8, 2>{}, 1);
  if (vectors <= 32) return in_blocks(Layout<16, 2>{}, 1);
  if (vectors <= 64) return in_blocks(Layout<32, 2>{}, 1);
  if (vectors <= 1024) return in_blocks(Layout<0, 2>{}, 1);
  if (vectors <= 2048) return in_blocks(Layout<0, 4>{}, 1);
  if (!cuda::has_programmatic_launch(call.execution.device_index)) return launch_any(call, of);
  for (unsigned cluster = 2; cluster <= most_blocks; cluster *= 2) {
    if (vectors <= 2048 * cluster) return in_blocks(Layout<0, 4, true>{}, cluster);
  }
  if constexpr (width <= 4) {
    if (vectors <= 4096 * most_blocks) return in_blocks(Layout<0, 8, true>{}, most_blocks);
  }
  return launch_any(call, of);
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
    return launch_gradients<T>(
        call, {input(0), input(1), input(2), static_cast<T*>(call.outputs[0].data), rows, columns,
               static_cast<Compute<T>>(call.real(0))});
  });
}

}  // namespace cudarelu::ops

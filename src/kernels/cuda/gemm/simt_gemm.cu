// Blocks compute tiles of the result. Both operands pass through a ring of stages in shared memory,
// a few k at a time, transposed if necessary so that k is the slower index. Each thread holds some
// rows and columns of the tile in registers and adds the products of one k after the other.
#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "cuda/gemm/simt_gemm.h"
#include "cuda/gemm/tiles.cuh"
#include "cuda/tile/threads.cuh"
#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/async_copy.cuh"
#include "cudarelu/detail/cuda/cluster.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/workspace.h"
#include "cudarelu/types.h"

namespace cudarelu::gpu {
namespace {

/// The layout of an operand. The outer index is the one that is not k: rows of a, columns of b.
enum class Layout : std::uint8_t {
  inner,        // k is the faster index
  outer,        // the outer index is the faster one, and is read four elements at a time
  outer_single  // the same, one element at a time
};

struct Operand {
  const float* data;
  std::int64_t pitch;  // from one row in memory to the next
  std::int64_t batch;  // from one matrix to the next
};

struct Arguments {
  Operand a;
  Operand b;
  Results results;
  int m;
  int n;
  int k;
  int part;   // of k, for a block
  int parts;  // of k; the results of each follow one another in d, or a cluster adds them up
  int tiles_m;
  int tiles_n;
  bool vectors;  // rows of d, sum, other and bias can be accessed four elements at a time
};

/// A thread's share of the copy of an operand's tiles, [block_k][outer] in shared memory.
template <int outer, int block_k, int threads, Layout layout>
class TileCopy {
 public:
  static constexpr int pitch = outer + 4;  // so that transposing writes have no bank conflicts

  __device__ TileCopy(const Operand& operand, std::int64_t batch, int first, int size, int first_k)
      : from_(operand.data + batch * operand.batch) {
    constexpr bool inner = layout == Layout::inner;
    from_ += inner ? first * operand.pitch + first_k : first_k * operand.pitch + first;
    step_ = inner ? block_k : block_k * operand.pitch;
    const int last = size - first - width;  // clamps offsets past the end
    const auto step = static_cast<unsigned>(operand.pitch);
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const unsigned at = min(outer_of(i), last);
      offsets_[i] = inner ? at * step + k_of(i) : k_of(i) * step + at;
    }
  }

  /// Starts the copy of the next tile. `left` k remain; zeros replace those after them.
  __device__ void next(float* to, int left) {
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      copy_async<4 * width>(to + k_of(i) * pitch + outer_of(i), from_ + offsets_[i],
                            k_of(i) < left);
    }
    from_ += step_;
  }

 private:
  static constexpr int width = layout == Layout::outer ? 4 : 1;
  static constexpr int copies = outer * block_k / threads / width;
  static_assert(copies * threads * width == outer * block_k);
  static constexpr int run = 8;  // k that neighbours read of a row: 32 bytes, a sector of memory
  static constexpr int runs_in_step = outer * run / threads;

  __device__ static int outer_of(int i) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (layout == Layout::inner) return thread / run + i % runs_in_step * (threads / run);
    return (thread + i * threads) % (outer / width) * width;
  }
  __device__ static int k_of(int i) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (layout == Layout::inner) return thread % run + i / runs_in_step * run;
    return (thread + i * threads) / (outer / width);
  }

  const float* from_;
  std::int64_t step_;
  unsigned offsets_[copies];
};

constexpr int max_parts = 8;  // in a cluster

/// The shape of a block. Its warps are 4 by 8 threads, each with `thread` rows and columns.
/// `slices` groups of warps divide the k of each stage, and add their results at the end.
/// `in_cluster`: the parts of a tile are the blocks of a cluster.
template <int block_m_, int block_n_, int block_k_, int thread, int slices_, int stages_,
          int resident_, bool in_cluster_ = false>
struct SimtConfig {
  static constexpr int block_m = block_m_;
  static constexpr int block_n = block_n_;
  static constexpr int block_k = block_k_;
  static constexpr int thread_m = thread;
  static constexpr int thread_n = thread;
  static constexpr int slices = slices_;
  static constexpr int stages = stages_;
  static constexpr int resident = resident_;  // blocks on a multiprocessor
  static constexpr bool in_cluster = in_cluster_;
  static constexpr int warps_m = block_m / (4 * thread_m);
  static constexpr int warps_n = block_n / (8 * thread_n);
  static constexpr int threads = 32 * warps_m * warps_n * slices;
  // The results pass through shared memory, 16 rows of each warp at a time.
  static constexpr int result_rows = 16 * warps_m;
  static constexpr int result_pitch = block_n + 4;
  static constexpr int slice_size = result_rows * result_pitch;
  static constexpr int stage_size = block_k * (block_m + block_n + 8);
  // For a cluster, the sums of all rows follow those of the slices.
  static constexpr int of_block = slices * slice_size;
  static constexpr int result_size = of_block + (in_cluster ? block_m * result_pitch : 0);
  static constexpr std::size_t bytes = sizeof(float) * std::max(stages * stage_size, result_size);
};

template <class T, Layout layout_a, Layout layout_b>
__global__ void __launch_bounds__(T::threads, T::resident)
    simt_kernel(const __grid_constant__ Arguments args) {
  using CopyA = TileCopy<T::block_m, T::block_k, T::threads, layout_a>;
  using CopyB = TileCopy<T::block_n, T::block_k, T::threads, layout_b>;
  extern __shared__ float4 shared_vectors[];
  auto* const shared = reinterpret_cast<float*>(shared_vectors);

  const auto block = static_cast<int>(blockIdx.x);
  const auto [result, tile_m, tile_n] =
      tile_at(T::in_cluster ? block / args.parts : block, args.tiles_m, args.tiles_n);
  const int m0 = tile_m * T::block_m;
  const int n0 = tile_n * T::block_n;
  const int matrix = T::in_cluster ? result : result / args.parts;
  const int part = (T::in_cluster ? block : result) % args.parts;
  const int k0 = part * args.part;
  const int size_k = min(args.k - k0, args.part);

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int lane_m = row_of_thread(lane);
  const int lane_n = column_of_thread(lane);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp % T::warps_m;
  const int warp_n = warp / T::warps_m % T::warps_n;
  const int slice = warp / (T::warps_m * T::warps_n);

  CopyA copy_a(args.a, matrix, m0, args.m, k0);
  CopyB copy_b(args.b, matrix, n0, args.n, k0);
  const int steps = (size_k + T::block_k - 1) / T::block_k;
  wait_for_previous_kernel();
  const auto fetch = [&](int stage, int step) {
    if (step < steps) {
      float* const to = shared + stage * T::stage_size;
      copy_a.next(to, size_k - step * T::block_k);
      copy_b.next(to + T::block_k * CopyA::pitch, size_k - step * T::block_k);
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < T::stages - 1; ++stage) fetch(stage, stage);

  // While the products of one k are added, the operands of the next k are loaded.
  constexpr int slice_k = T::block_k / T::slices;
  const int at_a = slice * slice_k * CopyA::pitch + warp_m * 4 * T::thread_m + lane_m * 4;
  const int at_b = T::block_k * CopyA::pitch + slice * slice_k * CopyB::pitch +
                   warp_n * 8 * T::thread_n + lane_n * 4;
  float a[2][T::thread_m];
  float b[2][T::thread_n];
  const auto load = [&](int buffer, const float* stage, int k) {
#pragma unroll
    for (int i = 0; i < T::thread_m; i += 4) {
      *reinterpret_cast<float4*>(&a[buffer][i]) =
          *reinterpret_cast<const float4*>(stage + at_a + k * CopyA::pitch + i * 4);
    }
#pragma unroll
    for (int j = 0; j < T::thread_n; j += 4) {
      *reinterpret_cast<float4*>(&b[buffer][j]) =
          *reinterpret_cast<const float4*>(stage + at_b + k * CopyB::pitch + j * 8);
    }
  };
  float sums[T::thread_m][T::thread_n] = {};
  int read = 0;
  int write = T::stages - 1;
  wait_for_copies<T::stages - 2>();
  __syncthreads();
  load(0, shared, 0);
  for (int step = 0; step < steps; ++step) {
    const float* const stage = shared + read * T::stage_size;
    read = read + 1 == T::stages ? 0 : read + 1;
#pragma unroll
    for (int k = 0; k < slice_k; ++k) {
      if (k < slice_k - 1) {
        load((k + 1) % 2, stage, k + 1);
      } else {  // the next stage is complete, and no thread reads this one any more
        wait_for_copies<T::stages - 2>();
        __syncthreads();
        load((k + 1) % 2, shared + read * T::stage_size, 0);
      }
      if (k == 0) {
        fetch(write, step + T::stages - 1);
        write = write + 1 == T::stages ? 0 : write + 1;
      }
#pragma unroll
      for (int p = 0; p < T::thread_m * T::thread_n; ++p) {
        const int i = back_and_forth(p, T::thread_m);
        const int j = p / T::thread_m;
        sums[i][j] = fmaf(a[k % 2][i], b[k % 2][j], sums[i][j]);
      }
    }
  }
  static_assert(slice_k % 2 == 0, "a step starts with the first buffer");

  // Through shared memory, so that neighbours write neighbours, with few copies of the code.
  wait_for_copies<0>();
  volatile float* const mine = shared +
                               ((slice * T::warps_m + warp_m) * 16 + lane_m * 4) * T::result_pitch +
                               warp_n * 8 * T::thread_n + lane_n * 4;
  float* const of_block = shared + T::of_block;
  const auto write_results = [&]<int width>(int row, int c, float (&values)[width]) {
    const int column = n0 + c;
    if (m0 + row >= args.m || column >= args.n) return;
    const std::int64_t at =
        (static_cast<std::int64_t>(result) * args.m + m0 + row) * args.n + column;
    finish<float>(args.results, values, at, column);
  };
  const auto add_slices = [&]<int width>(int i, std::integral_constant<int, width>) {
    constexpr int vectors = T::block_n / width;  // of a row
#pragma unroll 1
    for (int v = static_cast<int>(threadIdx.x); v < T::result_rows * vectors; v += T::threads) {
      const int r = v / vectors;
      const int c = v % vectors * width;
      const int row = r / 16 * 4 * T::thread_m + i * 4 + r % 16;
      float values[width] = {};
#pragma unroll
      for (int s = 0; s < T::slices; ++s) {
        add(values, shared + s * T::slice_size + r * T::result_pitch + c);
      }
      if (T::in_cluster && args.parts > 1) {
#pragma unroll
        for (int j = 0; j < width; ++j) of_block[row * T::result_pitch + c + j] = values[j];
      } else {
        write_results(row, c, values);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < T::thread_m; i += 4) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int j = 0; j < T::thread_n; ++j) {
        // Single elements: with vectors the sums would share register banks with the factors.
        mine[r * T::result_pitch + j / 4 * 32 + j % 4] = sums[i + r][j];
      }
    }
    __syncthreads();
    if (args.vectors) {
      add_slices(i, std::integral_constant<int, 4>{});
    } else {
      add_slices(i, std::integral_constant<int, 1>{});
    }
  }
  if constexpr (T::in_cluster) {
    if (args.parts == 1) return;
    arrive_at_cluster();
    wait_for_cluster();
    // The first blocks have an element, or four, for each thread.
    const auto add_parts = [&]<int width>(std::integral_constant<int, width>) {
      constexpr int vectors = T::block_n / width;
#pragma unroll 1
      for (int v = part * T::threads + static_cast<int>(threadIdx.x); v < T::block_m * vectors;
           v += args.parts * T::threads) {
        const int row = v / vectors;
        const int c = v % vectors * width;
        float values[width] = {};
#pragma unroll
        for (int p = 0; p < max_parts; ++p) {
          if (p < args.parts) add(values, of_cluster(of_block, p) + row * T::result_pitch + c);
        }
        write_results(row, c, values);
      }
    };
    if (args.vectors) {
      add_parts(std::integral_constant<int, 4>{});
    } else {
      add_parts(std::integral_constant<int, 1>{});
    }
    arrive_at_cluster();  // the others read the sums of this block
    wait_for_cluster();
  }
}

/// d = activation(the sum of the parts + bias); the parts of each matrix follow one another.
__global__ void __launch_bounds__(256)
    add_parts(const float* parts, const __grid_constant__ Arguments args, std::int64_t size) {
  wait_for_previous_kernel();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (at >= size) return;
  const std::int64_t matrix = static_cast<std::int64_t>(args.m) * args.n;
  const float* const first = parts + at / matrix * args.parts * matrix + at % matrix;
  float value[1] = {first[0]};
  for (int part = 1; part < args.parts; ++part) value[0] += first[part * matrix];
  finish<float>(args.results, value, at, static_cast<int>(at % args.n));
}

template <class T, Layout a, Layout b>
Status launch_tiles(const Call& call, const Arguments& args, std::int64_t results) {
  constexpr auto kernel = simt_kernel<T, a, b>;
  if (Status status = allow_shared_memory<kernel>(call, static_cast<int>(T::bytes)); !status.ok()) {
    return status;
  }
  const std::int64_t blocks = results * args.tiles_m * args.tiles_n;
  const auto cluster = static_cast<unsigned>(T::in_cluster && args.parts > 1 ? args.parts : 0);
  return launch(call, kernel, {static_cast<unsigned>(blocks), T::threads, T::bytes, cluster}, args);
}

/// The layout of an operand with `outer` rows or columns.
Layout layout_of(const Operand& operand, bool k_is_faster) {
  if (k_is_faster) return Layout::inner;
  const bool vectors = operand.pitch % 4 == 0 && misalignment(operand.data) == 0;
  return vectors ? Layout::outer : Layout::outer_single;
}

using Large = SimtConfig<128, 128, 16, 8, 1, 3, 2>;
using Small = SimtConfig<64, 64, 16, 8, 2, 3, 3>;
using Tiny =
    SimtConfig<32, 32, 32, 4, 4, 4, 3, true>;  // for products that take as long as their loads

template <class T>
Status launch_tiles(const Call& call, const Arguments& args, std::int64_t results, Layout a,
                    Layout b) {
  using enum Layout;
  if constexpr (!std::is_same_v<T, Large>) {
    if (a == outer_single && b == inner) {
      return launch_tiles<T, outer_single, inner>(call, args, results);
    }
    if (a == outer_single || (a == outer && b == outer_single)) {
      return launch_tiles<T, outer_single, outer_single>(call, args, results);
    }
    if (b == outer_single) return launch_tiles<T, inner, outer_single>(call, args, results);
  }
  if (a == inner && b == inner) return launch_tiles<T, inner, inner>(call, args, results);
  if (a == inner) return launch_tiles<T, inner, outer>(call, args, results);
  if (b == inner) return launch_tiles<T, outer, inner>(call, args, results);
  return launch_tiles<T, outer, outer>(call, args, results);
}

/// The tiles of all results; it may be more than fit an integer.
template <class T>
double tiles_of(const Gemm& gemm) {
  return static_cast<double>(gemm.batch) * static_cast<double>(ceil_div(gemm.m, T::block_m)) *
         static_cast<double>(ceil_div(gemm.n, T::block_n));
}

/// The number of parts of k, and the cost of the product: the products of the busiest
/// multiprocessor for each k, divided by the relative speed of the tiling.
struct KSplit {
  int parts;
  double cost;
};

template <class T>
KSplit k_split_for(const Gemm& gemm, int multiprocessors, double speed) {
  constexpr std::int64_t shortest = T::in_cluster ? 2 * T::block_k : 256;  // k of a part
  constexpr double cost_of_parts = 1.15;                                   // of adding them up
  const auto tiles = static_cast<std::int64_t>(tiles_of<T>(gemm));
  std::int64_t limit = std::max<std::int64_t>(gemm.k / shortest, 1);
  if (T::in_cluster) limit = std::min<std::int64_t>(limit, max_parts);
  const std::int64_t parts = std::clamp<std::int64_t>(multiprocessors / tiles, 1, limit);
  const auto rounds = static_cast<double>(ceil_div(tiles * parts, multiprocessors));
  const double work = rounds * T::block_m * T::block_n / static_cast<double>(parts);
  return {static_cast<int>(parts), work / speed * (parts > 1 ? cost_of_parts : 1)};
}

}  // namespace

bool takes_simt(const Gemm& gemm, int) {
  constexpr std::int64_t limit = std::numeric_limits<int>::max();
  constexpr std::int64_t widest = std::int64_t{1} << 23;  // offsets in a tile fit 32 bits
  if (gemm.dtype != DType::float32) return false;
  // Tiles may extend past the end.
  if (std::max({gemm.m, gemm.n, gemm.k}) > limit - Large::block_m) return false;
  return (gemm.a_transposed ? gemm.m : gemm.k) < widest &&
         (gemm.b_transposed ? gemm.k : gemm.n) < widest &&
         tiles_of<Small>(gemm) <= static_cast<double>(limit);
}

bool prefers_simt(const Gemm& gemm, int device) {
  if (!takes_simt(gemm, device) || !has_programmatic_launch(device)) return false;
  if (gemm.allow_tf32 || gemm.k > 1024) return false;
  if (gemm.a_transposed && std::min(gemm.m, gemm.n) < 16) return false;
  const int multiprocessors = number_of<cudaDevAttrMultiProcessorCount>(device);
  return tiles_of<Tiny>(gemm) <= multiprocessors * (gemm.k <= 256 ? 1.28 : 1);
}

Status simt_gemm(const Call& call, const Gemm& gemm) {
  if (gemm.batch == 0 || gemm.m == 0 || gemm.n == 0) return {};
  const int multiprocessors =
      number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
  Arguments args{};
  args.a = {static_cast<const float*>(gemm.a), gemm.a_transposed ? gemm.m : gemm.k,
            gemm.m * gemm.k};
  args.b = {static_cast<const float*>(gemm.b), gemm.b_transposed ? gemm.k : gemm.n,
            gemm.n * gemm.k};
  args.m = static_cast<int>(gemm.m);
  args.n = static_cast<int>(gemm.n);
  args.k = static_cast<int>(gemm.k);
  args.results = results_of(gemm);
  const Layout a = layout_of(args.a, !gemm.a_transposed);
  const Layout b = layout_of(args.b, gemm.b_transposed);
  const auto run = [&]<class T>(TypeTag<T>, const KSplit& plan) {
    args.part = static_cast<int>(ceil_div(ceil_div(gemm.k, plan.parts), T::block_k)) * T::block_k;
    args.parts = std::max(1, static_cast<int>(ceil_div(gemm.k, std::max(args.part, 1))));
    args.tiles_m = static_cast<int>(ceil_div(gemm.m, T::block_m));
    args.tiles_n = static_cast<int>(ceil_div(gemm.n, T::block_n));
    const Arguments whole = args;
    const std::int64_t results = gemm.batch * args.parts;
    const bool in_memory = !T::in_cluster && args.parts > 1;
    float* parts = nullptr;
    if (in_memory) {
      if (Status status = allocate(call, results * gemm.m * gemm.n, parts); !status.ok()) {
        return status;
      }
      args.results = {.d = parts};
    }
    args.vectors = args.n % 4 == 0 && misalignment(args.results.d) == 0 &&
                   misalignment(args.results.sum) == 0 && misalignment(args.results.bias) == 0 &&
                   misalignment(args.results.other) == 0;
    Status status = launch_tiles<T>(call, args, results, a, b);
    if (!in_memory || !status.ok()) return status;
    const std::int64_t size = gemm.batch * gemm.m * gemm.n;
    return launch(call, add_parts, {blocks_for(size, 256), 256}, parts, whole, size);
  };
  if (prefers_simt(gemm, call.execution.device_index)) {
    return run(TypeTag<Tiny>{}, k_split_for<Tiny>(gemm, multiprocessors, 1.0));
  }
  const KSplit in_large = k_split_for<Large>(gemm, multiprocessors, 1.0);
  const KSplit in_small = k_split_for<Small>(gemm, multiprocessors, 0.91);  // measured
  const bool single = a == Layout::outer_single || b == Layout::outer_single;
  const bool large = !single && in_large.cost <= in_small.cost;
  return large ? run(TypeTag<Large>{}, in_large) : run(TypeTag<Small>{}, in_small);
}

}  // namespace cudarelu::gpu

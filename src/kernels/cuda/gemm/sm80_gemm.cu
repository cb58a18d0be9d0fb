// Blocks compute tiles of the result. Panels of both operands pass through a ring of stages in
// shared memory, in their layout in memory. Each warp multiplies a part of the tile, with
// instructions for 32 bytes of k of any type.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cuda/gemm/sm80_gemm.h"
#include "cuda/gemm/tiles.cuh"
#include "cuda/tile/mma.cuh"
#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/async_copy.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/types.h"

namespace cudarelu::gpu {
namespace {

/// The outer index of an operand is the one that is not k: rows of a, columns of b.
struct Operand {
  const void* data;
  std::int64_t batch;  // from one matrix to the next
  int pitch;           // from one line in memory to the next
  bool vectors;        // lines can be read 16 bytes at a time
};

struct Arguments {
  Operand a;
  Operand b;
  Results results;
  int m;
  int n;
  int k;
  int tiles_m;
  int tiles_n;
  bool vectors;  // lines of d, sum, other and bias can be accessed 16 bytes at a time
};

/// The shape of a block: its rows and columns, those of a warp, and stages of `depth` bytes of k.
template <class T_, int rows_, int columns_, int warp_rows_, int warp_columns_, int depth_,
          int stages_>
struct Sm80Config {
  using T = T_;
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int warp_rows = warp_rows_;
  static constexpr int warp_columns = warp_columns_;
  static constexpr int warps_m = rows / warp_rows;
  static constexpr int threads = 32 * warps_m * (columns / warp_columns);
  static constexpr int width = 16 / sizeof(T);      // elements of a vector
  static constexpr int depth = depth_ / sizeof(T);  // of a stage
  static constexpr int substeps = depth_ / 32;
  static_assert(substeps % 2 == 0, "a stage begins with the first buffer");
  static constexpr int stages = stages_;
  static constexpr int result_pitch = warp_columns + 4;  // of 16 rows of a warp, in float32
};

/// Whether the code for an architecture has a tiling. On 9.0 sm90_gemm() takes products of 16
/// bits with aligned rows; for the others the small tiling has to do, which gives the same results.
template <class P>
constexpr bool has_config(int architecture) {
  return architecture != 90 || sizeof(typename P::T) == 4 || P::rows == 64;
}

/// An operand's panel of a stage: a thread's share of its copy, and what a warp loads from it.
template <class P, int outer, bool depth_major>
class Panel {
  using T = typename P::T;
  static constexpr int line = depth_major ? P::depth : outer;
  static constexpr int lines = depth_major ? outer : P::depth;
  static constexpr int vectors = line / P::width;         // of a line
  static constexpr int at_a_time = P::threads / vectors;  // lines
  static_assert(P::threads % vectors == 0 && lines % at_a_time == 0);
  // Lines that are read at the same time are in different banks.
  static constexpr int pitch = line + (depth_major || sizeof(T) == 2 ? P::width : 2 * P::width);

 public:
  static constexpr int bytes = lines * pitch * sizeof(T);

  /// For a block that begins at `first` of the outer index, which has `size`.
  __device__ Panel(const Operand& operand, int matrix, int first, int size, int k)
      : pitch_(operand.pitch), vectors_(operand.vectors) {
    const int number = static_cast<int>(threadIdx.x) / vectors;
    const int in_line = static_cast<int>(threadIdx.x) % vectors * P::width;
    at_ = number * pitch + in_line;
    lines_left_ = (depth_major ? size - first : k) - number;
    left_ = (depth_major ? k : size - first) - in_line;
    from_ = static_cast<const T*>(operand.data) + matrix * operand.batch + in_line +
            static_cast<std::int64_t>(number) * pitch_ +
            (depth_major ? static_cast<std::int64_t>(first) * pitch_ : first);
  }

  /// Starts the copy of the next panel, with zeros for elements outside of the matrix.
  __device__ void copy(char* panel) {
    T* const to = reinterpret_cast<T*>(panel) + at_;
    const auto for_each_line = [&](const auto& copy_vector) {
#pragma unroll
      for (int i = 0; i < lines; i += at_a_time) {
        copy_vector(to + i * pitch, from_ + static_cast<std::int64_t>(i) * pitch_,
                    i < lines_left_ ? left_ : 0);
      }
    };
    if (vectors_) {
      for_each_line([](T* to, const T* from, int left) { copy_async<16>(to, from, left > 0); });
    } else {
      for_each_line([](T* to, const T* from, int left) {
#pragma unroll
        for (int e = 0; e < P::width; ++e) to[e] = e < left ? from[e] : T{};
      });
    }
    from_ += depth_major ? P::depth : static_cast<std::int64_t>(P::depth) * pitch_;
    (depth_major ? left_ : lines_left_) -= P::depth;
  }

  /// Loads 16 of the outer index from `first` on, and 32 bytes of k, in the distribution over the
  /// warp that the instruction needs. `k_first`: the first two words are both halves of k for the
  /// first 8 of the outer index; else they are the first half of k for all 16.
  template <bool k_first>
  __device__ static void load(unsigned (&words)[4], const char* panel, int first, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int low = lane / 8 % 2;  // bits of the number of the matrix whose line the lane addresses
    const int high = lane / 16;
    const int half_k = k_first ? low : high;
    const int half_outer = k_first ? high : low;
    const T* const from = reinterpret_cast<const T*>(panel);
    if constexpr (!depth_major && sizeof(T) == 4) {
      const T* const at = from + (k + lane % 4) * pitch + first + lane / 4;
      words[0] = __float_as_uint(at[0]);
      words[1] = __float_as_uint(at[k_first ? 4 * pitch : 8]);
      words[2] = __float_as_uint(at[k_first ? 8 : 4 * pitch]);
      words[3] = __float_as_uint(at[4 * pitch + 8]);
    } else if constexpr (depth_major) {
      load_matrices<false>(
          words, from + (first + 8 * half_outer + lane % 8) * pitch + k + half_k * P::width);
    } else {
      load_matrices<true>(words,
                          from + (k + 8 * half_k + lane % 8) * pitch + first + 8 * half_outer);
    }
  }

 private:
  const T* from_;
  int pitch_;
  int at_;          // in the panel, in elements
  int lines_left_;  // from the thread's first one on
  int left_;        // elements of the lines
  bool vectors_;
};

/// Replaces each float32 by the nearest TF32, or a neighbour of that; `small` gets the rest.
template <int count>
__device__ __forceinline__ void split(unsigned (&words)[count], unsigned (&small)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    // The sum rounds the 13 lowest bits away. NVIDIA's cvt.rna takes three slower instructions.
    const float x = __uint_as_float(words[i]);
    const float big = (fmaf(x, 0x1p-13f, x) - x) * 0x1p13f;
    words[i] = __float_as_uint(big);
    small[i] = __float_as_uint(x - big) + 0x1000;  // rounds: the multiplication drops 13 bits
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

template <class P, bool a_depth_major, bool b_depth_major>
__device__ __forceinline__ void multiply_tile(const Arguments& args) {
  using T = typename P::T;
  using A = Panel<P, P::rows, a_depth_major>;
  using B = Panel<P, P::columns, b_depth_major>;
  constexpr int stage_bytes = A::bytes + B::bytes;
  extern __shared__ uint4 vectors[];
  char* const shared = reinterpret_cast<char*>(vectors);

  const auto [matrix, tile_m, tile_n] =
      tile_at(static_cast<int>(blockIdx.x), args.tiles_m, args.tiles_n);
  const int m0 = tile_m * P::rows;
  const int n0 = tile_n * P::columns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp % P::warps_m * P::warp_rows;
  const int warp_n = warp / P::warps_m * P::warp_columns;

  A a(args.a, matrix, m0, args.m, args.k);
  B b(args.b, matrix, n0, args.n, args.k);
  const int steps = (args.k + P::depth - 1) / P::depth;
  const auto fetch = [&](int step) {
    if (step < steps) {
      char* const to = shared + step % P::stages * stage_bytes;
      a.copy(to);
      b.copy(to + A::bytes);
    }
    commit_copies();
  };
  wait_for_previous_kernel();
#pragma unroll
  for (int step = 0; step < P::stages - 1; ++step) fetch(step);

  // While the products of 32 bytes of k are added, the operands of the next are loaded.
  constexpr int tiles_m = P::warp_rows / 16;
  constexpr int pairs_n = P::warp_columns / 16;
  unsigned as[2][tiles_m][4];
  unsigned bs[2][pairs_n][4];
  const auto load = [&](int buffer, int step, int k) {
    const char* const stage = shared + step % P::stages * stage_bytes;
#pragma unroll
    for (int i = 0; i < tiles_m; ++i)
      A::template load<false>(as[buffer][i], stage, warp_m + 16 * i, k);
#pragma unroll
    for (int j = 0; j < pairs_n; ++j) {
      B::template load<true>(bs[buffer][j], stage + A::bytes, warp_n + 16 * j, k);
    }
  };
  using Sums = float[tiles_m][2 * pairs_n][4];
  Sums sums = {};
  const auto multiply_all = [&](Sums& to, const auto& as, const auto& bs) {
#pragma unroll
    for (int i = 0; i < tiles_m; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * pairs_n; ++j) {
        multiply<T>(to[i][j], as[i], bs[j / 2][j % 2 * 2], bs[j / 2][j % 2 * 2 + 1]);
      }
    }
  };
  wait_for_copies<P::stages - 2>();
  __syncthreads();
  load(0, 0, 0);
  for (int step = 0; step < steps; ++step) {
    Sums few = {};  // for float32: few products, since tensor cores truncate sums
#pragma unroll
    for (int s = 0; s < P::substeps; ++s) {
      if (s + 1 < P::substeps) {
        load((s + 1) % 2, step, (s + 1) * 2 * P::width);
      } else {  // the next stage is complete, and no thread reads this one any more
        wait_for_copies<P::stages - 2>();
        __syncthreads();
        load((s + 1) % 2, step + 1, 0);
      }
      if (s == 0) fetch(step + P::stages - 1);
      auto& a = as[s % 2];
      auto& b = bs[s % 2];
      if constexpr (std::is_same_v<T, float>) {
        unsigned small_a[tiles_m][4];
        unsigned small_b[pairs_n][4];
#pragma unroll
        for (int i = 0; i < tiles_m; ++i) split(a[i], small_a[i]);
#pragma unroll
        for (int j = 0; j < pairs_n; ++j) split(b[j], small_b[j]);
        multiply_all(few, small_a, b);
        multiply_all(few, a, small_b);
        multiply_all(few, a, b);
        if (s % 2 == 0) continue;
#pragma unroll
        for (int i = 0; i < tiles_m * 2 * pairs_n * 4; ++i) {
          (&sums[0][0][0])[i] += (&few[0][0][0])[i];
          (&few[0][0][0])[i] = 0;
        }
      } else {
        multiply_all(sums, a, b);
      }
    }
  }

  // Through shared memory, 16 rows of each warp at a time, so that neighbours write neighbours.
  wait_for_copies<0>();
  __syncthreads();
  float* const mine = reinterpret_cast<float*>(shared) + warp * 16 * P::result_pitch;
  const auto write = [&]<int width>(int i, std::integral_constant<int, width>) {
    constexpr int in_row = P::warp_columns / width;
#pragma unroll 1
    for (int v = lane; v < 16 * in_row; v += 32) {
      const int row = m0 + warp_m + 16 * i + v / in_row;
      const int column = n0 + warp_n + v % in_row * width;
      if (row >= args.m || column >= args.n) continue;
      float values[width] = {};
      add(values, mine + v / in_row * P::result_pitch + v % in_row * width);
      finish<T>(args.results, values,
                (static_cast<std::int64_t>(matrix) * args.m + row) * args.n + column, column);
    }
  };
#pragma unroll
  for (int i = 0; i < tiles_m; ++i) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2 * pairs_n; ++j) {
      float* const at = mine + lane / 4 * P::result_pitch + 8 * j + lane % 4 * 2;
      *reinterpret_cast<float2*>(at) = {sums[i][j][0], sums[i][j][1]};
      *reinterpret_cast<float2*>(at + 8 * P::result_pitch) = {sums[i][j][2], sums[i][j][3]};
    }
    __syncwarp();
    if (args.vectors) {
      write(i, std::integral_constant<int, P::width>{});
    } else {
      write(i, std::integral_constant<int, 1>{});
    }
  }
}

#endif

template <class P, bool a_depth_major, bool b_depth_major>
__global__ void __launch_bounds__(P::threads) mma_kernel(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 800
  if constexpr (has_config<P>(__CUDA_ARCH__ / 10)) {
    multiply_tile<P, a_depth_major, b_depth_major>(args);
  }
#endif
}

template <class P, bool a_depth_major, bool b_depth_major>
Status launch_tiles(const Call& call, const Arguments& args, std::int64_t blocks) {
  constexpr auto kernel = mma_kernel<P, a_depth_major, b_depth_major>;
  constexpr int bytes = std::max(P::stages * (Panel<P, P::rows, a_depth_major>::bytes +
                                              Panel<P, P::columns, b_depth_major>::bytes),
                                 P::threads / 32 * 16 * P::result_pitch * 4);
  if (Status status = allow_shared_memory<kernel>(call, bytes); !status.ok()) {
    return status;
  }
  return launch(call, kernel, {static_cast<unsigned>(blocks), P::threads, bytes}, args);
}

template <class P>
Status launch_tiles(const Call& call, const Gemm& gemm, Arguments args) {
  args.tiles_m = static_cast<int>((gemm.m + P::rows - 1) / P::rows);
  args.tiles_n = static_cast<int>((gemm.n + P::columns - 1) / P::columns);
  const std::int64_t blocks = gemm.batch * args.tiles_m * args.tiles_n;
  if (gemm.a_transposed) return launch_tiles<P, false, false>(call, args, blocks);
  if (gemm.b_transposed) return launch_tiles<P, true, true>(call, args, blocks);
  return launch_tiles<P, true, false>(call, args, blocks);
}

Arguments arguments_of(const Gemm& gemm) {
  const auto size = static_cast<std::int64_t>(size_of(gemm.dtype));
  const auto vectors = [&](std::int64_t line, const auto*... data) {
    return line * size % vector_bytes == 0 && ((misalignment(data) == 0) && ...);
  };
  const std::int64_t line_a = gemm.a_transposed ? gemm.m : gemm.k;
  const std::int64_t line_b = gemm.b_transposed ? gemm.k : gemm.n;
  return {.a = {gemm.a, gemm.m * gemm.k, static_cast<int>(line_a), vectors(line_a, gemm.a)},
          .b = {gemm.b, gemm.n * gemm.k, static_cast<int>(line_b), vectors(line_b, gemm.b)},
          .results = results_of(gemm),
          .m = static_cast<int>(gemm.m),
          .n = static_cast<int>(gemm.n),
          .k = static_cast<int>(gemm.k),
          .tiles_m = 0,
          .tiles_n = 0,
          .vectors = vectors(gemm.n, gemm.bias, gemm.d, gemm.sum, gemm.other)};
}

/// The cost of a product: the work of the busiest multiprocessor, divided by the tiling's speed.
template <class P>
double cost(const Gemm& gemm, int multiprocessors, double speed) {
  const auto all =
      static_cast<double>(gemm.batch * ceil_div(gemm.m, P::rows) * ceil_div(gemm.n, P::columns));
  return std::ceil(all / multiprocessors) * P::rows * P::columns / speed;
}

template <class T>
Status launch_type(const Call& call, const Gemm& gemm) {
  constexpr bool halves = sizeof(T) == 2;
  using Large = std::conditional_t<halves, Sm80Config<T, 128, 256, 64, 64, 64, 3>,
                                   Sm80Config<T, 128, 64, 64, 32, 64, 3>>;
  using Small = std::conditional_t<halves, Sm80Config<T, 64, 128, 32, 64, 64, 4>,
                                   Sm80Config<T, 64, 64, 32, 32, 64, 4>>;
  const int multiprocessors =
      number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
  constexpr double speed_of_small = halves ? 0.62 : 0.93;  // measured
  const Arguments args = arguments_of(gemm);
  const int architecture = compiled_architecture(call.execution.device_index);
  if (has_config<Large>(architecture) &&
      cost<Large>(gemm, multiprocessors, 1) <= cost<Small>(gemm, multiprocessors, speed_of_small)) {
    return launch_tiles<Large>(call, gemm, args);
  }
  return launch_tiles<Small>(call, gemm, args);
}

}  // namespace

bool takes_sm80(const Gemm& gemm, int device) {
  constexpr std::int64_t limit = std::numeric_limits<int>::max();
  if (gemm.dtype == DType::float64 || (gemm.a_transposed && gemm.b_transposed)) return false;
  if (std::max({gemm.m, gemm.n, gemm.k}) > limit - 256) return false;  // tiles may go past the end
  const auto tiles = [](std::int64_t size) { return static_cast<double>((size + 63) / 64); };
  return static_cast<double>(gemm.batch) * tiles(gemm.m) * tiles(gemm.n) <= limit &&
         is_compiled_for(80, device);
}

Status sm80_gemm(const Call& call, const Gemm& gemm) {
  if (gemm.dtype == DType::float16) return launch_type<Half>(call, gemm);
  if (gemm.dtype == DType::bfloat16) return launch_type<BFloat16>(call, gemm);
  return launch_type<float>(call, gemm);
}

}  // namespace cudarelu::gpu

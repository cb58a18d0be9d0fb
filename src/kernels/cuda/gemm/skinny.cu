// A block takes some columns of the result, a cluster of blocks the same ones. The warps of the
// block or cluster share out k: each adds up its part for all elements, and the parts are added
// together in a fixed order. So no two blocks read the same weight, and each thread has all its
// loads under way at once, or most.
#include <algorithm>

#include "cuda/alignment.h"
#include "cuda/async_copy.cuh"
#include "cuda/gemm/activation.cuh"
#include "cuda/gemm/skinny.h"
#include "cuda/launch.cuh"
#include "types.h"

namespace cudarelu::cuda {
namespace {

struct Arguments {
  const void* x;  // [m, k]
  const void* w;  // [n, k]
  const void* bias;
  void* d;
  void* sum;
  int m;
  int n;
  int k;
  Activation activation;
};

/// Of a block: its rows (of x, or more) and columns, and its warps.
template <int rows_, int columns_, int warps_>
struct Slice {
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int warps = warps_;
  static constexpr int threads = 32 * warps;
  static constexpr int pairs = rows * columns / 2;  // of neighbours in a row of the result
  static constexpr int most_blocks = 8;             // of a cluster; 1, 2, 4 or 8
  static_assert(pairs % most_blocks == 0);
  // Of the parts in shared memory, such that the rows which a warp writes are in different banks.
  static constexpr int pitch = columns + (columns % 16 == 0 ? 8 : 0);
  static constexpr int part_size = rows * pitch;  // of a warp
};

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ unsigned cluster_size() {
  unsigned size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

/// Says to the cluster that this block runs.
__device__ __forceinline__ void greet_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

/// Says to the cluster that the block's writes to its memory are done.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/// Writes to where `local` is in the shared memory of another block of the cluster.
__device__ __forceinline__ void store_at(unsigned rank, float2* local, float2 value) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(local))), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x),
               "f"(value.y)
               : "memory");
}

/// A weight, which nobody reads again.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

/// c += a b for 16 x 16 and 16 x 8 elements, spread over the warp.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

__device__ __forceinline__ unsigned word(const uint4& vector, int i) {
  return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
}

__device__ __forceinline__ float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

/// Two neighbours of a row.
template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T x;
  T y;

  __device__ static Pair from(float2 value) { return {store<T>(value.x), store<T>(value.y)}; }
  __device__ float2 value() const { return {load(x), load(y)}; }
};

/// Adds up the parts of the block's warps, then of the cluster's blocks, each of which does so for
/// a share of the result and finishes it.
template <class T, class S>
class Results {
 public:
  /// Asks for the bias, long before it is needed.
  __device__ Results(const Arguments& args, int n0)
      : args_(args),
        n0_(n0),
        blocks_(static_cast<int>(cluster_size())),
        rank_(static_cast<int>(cluster_rank())),
        share_(S::pairs / blocks_) {
    for_each_own([&](int i, int, int column) {
      if (args.bias != nullptr) bias_[i] = *at<const Pair<T>>(args.bias, column);
    });
  }

  /// `parts`: of the warps; where there is a cluster, `inbox` has room for all pairs.
  __device__ void reduce(const float* parts, float2* inbox) const {
    if (blocks_ > 1) {
      wait_for_cluster();  // until all run
      for (int owner = 0; owner < blocks_; ++owner) {
        for (int i = static_cast<int>(threadIdx.x); i < share_; i += S::threads) {
          store_at(owner, inbox + rank_ * share_ + i, sum_of_warps(parts, owner * share_ + i));
        }
      }
      arrive_at_cluster();
      wait_for_cluster();
    }
    for_each_own([&](int i, int pair, int column) {
      float2 total = {0, 0};
      if (blocks_ == 1) {
        total = sum_of_warps(parts, pair);
      } else {
        for (int block = 0; block < blocks_; ++block) {
          total = total + inbox[block * share_ + pair - rank_ * share_];
        }
      }
      if (args_.bias != nullptr) total = total + bias_[i].value();
      const std::int64_t place =
          static_cast<std::int64_t>(pair / (S::columns / 2)) * args_.n + column;
      if (args_.sum != nullptr) *at<Pair<T>>(args_.sum, place) = Pair<T>::from(total);
      float values[2] = {total.x, total.y};
      activate(values, args_.activation);
      *at<Pair<T>>(args_.d, place) = Pair<T>::from({values[0], values[1]});
    });
  }

 private:
  static constexpr int most_own = (S::pairs + S::threads - 1) / S::threads;

  template <class P, class Void>
  __device__ static P* at(Void* data, std::int64_t element) {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return reinterpret_cast<P*>(static_cast<Element*>(data) + element);
  }

  /// Visits the pairs that the thread finishes: number, pair, column of the result.
  template <class Visit>
  __device__ void for_each_own(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < most_own; ++i) {
      const int in_share = static_cast<int>(threadIdx.x) + i * S::threads;
      const int pair = rank_ * share_ + in_share;
      const int column = n0_ + pair % (S::columns / 2) * 2;
      if (in_share < share_ && pair / (S::columns / 2) < args_.m && column < args_.n) {
        visit(i, pair, column);
      }
    }
  }

  __device__ static float2 sum_of_warps(const float* parts, int pair) {
    const int row = pair / (S::columns / 2);
    const int column = pair % (S::columns / 2) * 2;
    const float* const from = parts + row * S::pitch + column;
    float2 total = *reinterpret_cast<const float2*>(from);
#pragma unroll
    for (int warp = 1; warp < S::warps; ++warp) {
      total = total + *reinterpret_cast<const float2*>(from + warp * S::part_size);
    }
    return total;
  }

  const Arguments& args_;
  int n0_;
  int blocks_;
  int rank_;
  int share_;  // pairs that a block finishes
  Pair<T> bias_[most_own];
};

#endif

/// Two-byte elements, on tensor cores, straight from global memory into registers: a thread has the
/// elements 8t to 8t + 7 of 32 k of a row, for t = lane % 4, whichever k the instruction takes them
/// for, since it adds up the same ones of x and the weights. `depth` such steps are under way.
template <int rows, int columns, int warps>
struct HalfSlice : Slice<rows, columns, warps> {
  static constexpr int inbox = warps * HalfSlice::part_size;  // where it begins
  static constexpr std::size_t bytes = sizeof(float) * (inbox + 2 * HalfSlice::pairs);
};

template <class T, class S, int depth>
__global__ void __launch_bounds__(S::threads)
    skinny_halves(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
  constexpr int bands = S::rows / 8;  // of x, 8 rows each; an instruction takes two
  constexpr int tiles = S::columns / 8;
  constexpr int part = 32;               // of k, that a warp has at a time
  constexpr int step = part * S::warps;  // to its next one
  const auto blocks = static_cast<int>(cluster_size());
  if (blocks > 1) greet_cluster();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int cluster = static_cast<int>(blockIdx.x) / blocks;
  const int n0 = cluster * S::columns;
  // Blocks that run at a time begin with different parts: they all read x.
  const int warp = (static_cast<int>(threadIdx.x) / 32 + cluster) % S::warps;
  const int parts_of_block = ((args.k + part - 1) / part + blocks - 1) / blocks;
  const int first = (static_cast<int>(cluster_rank()) * parts_of_block + warp) * part;
  int left = min(args.k, (static_cast<int>(cluster_rank()) + 1) * parts_of_block * part) - first;
  const T* x[bands];
  const T* w[tiles];
#pragma unroll
  for (int i = 0; i < bands; ++i) {  // what lies outside is read from inside, for nothing
    const int row = min(8 * i + g, args.m - 1);
    x[i] = static_cast<const T*>(args.x) + static_cast<std::int64_t>(row) * args.k + first + 8 * t;
  }
#pragma unroll
  for (int j = 0; j < tiles; ++j) {
    const int column = min(n0 + 8 * j + g, args.n - 1);
    w[j] =
        static_cast<const T*>(args.w) + static_cast<std::int64_t>(column) * args.k + first + 8 * t;
  }
  uint4 xs[depth][bands];
  uint4 ws[depth][tiles];
  const auto fetch = [&](int u, int ahead) {
    const int there = left - ahead;
    if (there >= part) {
#pragma unroll
      for (int j = 0; j < tiles; ++j) ws[u][j] = load_once(w[j] + ahead);
#pragma unroll
      for (int i = 0; i < bands; ++i) xs[u][i] = *reinterpret_cast<const uint4*>(x[i] + ahead);
    } else if (there > 0) {  // the end of the rows
      const bool inside = 8 * t < there;
#pragma unroll
      for (int j = 0; j < tiles; ++j) ws[u][j] = inside ? load_once(w[j] + ahead) : uint4{};
#pragma unroll
      for (int i = 0; i < bands; ++i) {
        xs[u][i] = inside ? *reinterpret_cast<const uint4*>(x[i] + ahead) : uint4{};
      }
    }
  };
  wait_for_previous_kernel();
#pragma unroll
  for (int u = 0; u < depth; ++u) fetch(u, u * step);
  const Results<T, S> results(args, n0);
  float sums[bands / 2][tiles][4] = {};
  while (left > 0) {
#pragma unroll
    for (int u = 0; u < depth; ++u) {
      if (left <= u * step) break;
#pragma unroll
      for (int h = 0; h < 4; h += 2) {
#pragma unroll
        for (int i = 0; i < bands / 2; ++i) {
          const uint4 upper = xs[u][2 * i];
          const uint4 lower = xs[u][2 * i + 1];
#pragma unroll
          for (int j = 0; j < tiles; ++j) {
            multiply<T>(sums[i][j], word(upper, h), word(lower, h), word(upper, h + 1),
                        word(lower, h + 1), word(ws[u][j], h), word(ws[u][j], h + 1));
          }
        }
      }
      fetch(u, (u + depth) * step);
    }
    left -= depth * step;
#pragma unroll
    for (const T*& row : x) row += depth * step;
#pragma unroll
    for (const T*& row : w) row += depth * step;
  }
  extern __shared__ float4 shared[];
  auto* const parts = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < bands / 2; ++i) {
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
      float* const to = parts + warp * S::part_size + (16 * i + g) * S::pitch + 8 * j + 2 * t;
      *reinterpret_cast<float2*>(to) = {sums[i][j][0], sums[i][j][1]};
      *reinterpret_cast<float2*>(to + 8 * S::pitch) = {sums[i][j][2], sums[i][j][3]};
    }
  }
  __syncthreads();
  results.reduce(parts, reinterpret_cast<float2*>(parts + S::inbox));
#endif
}

/// float32: x and the weights pass through shared memory, as they lie, in a ring of stages; a warp
/// has `quads` times four k of each stage, and its threads 4 by 8 of the rows and columns.
template <int rows, int columns, int warps, int quads_, int stages_>
struct FloatSlice : Slice<rows, columns, warps> {
  static constexpr int quads = quads_;
  static constexpr int stages = stages_;
  static constexpr int line = quads * warps;  // quads of a row in a stage
  static_assert(line % 8 == 0, "eight rows of a quad are in all banks");
  static constexpr int stage_k = 4 * line;
  static constexpr int stage_size = (rows + columns) * stage_k;
  static constexpr int inbox = std::max(stages * stage_size, warps* FloatSlice::part_size);
  static constexpr std::size_t bytes = sizeof(float) * (inbox + 2 * FloatSlice::pairs);
};

template <class S>
__global__ void __launch_bounds__(S::threads)
    skinny_floats(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ float4 shared_vectors[];
  auto* const shared = reinterpret_cast<float*>(shared_vectors);
  const auto blocks = static_cast<int>(cluster_size());
  const auto rank = static_cast<int>(cluster_rank());
  if (blocks > 1) greet_cluster();
  let_next_kernel_start();
  const int n0 = static_cast<int>(blockIdx.x) / blocks * S::columns;

  // The copies: a thread has one quad of every row that its turn comes to.
  constexpr int all_rows = S::rows + S::columns;  // of x, then of the weights
  constexpr int at_a_time = S::threads / S::line;
  constexpr int copies = (all_rows + at_a_time - 1) / at_a_time;
  static_assert(at_a_time % 8 == 0, "a thread's rows have their quads in the same order");
  const int quad = static_cast<int>(threadIdx.x) % S::line;
  const int first = static_cast<int>(threadIdx.x) / S::line;
  const auto* const x = static_cast<const float*>(args.x);
  const auto* const w = static_cast<const float*>(args.w);
  const float* from[copies];
#pragma unroll
  for (int i = 0; i < copies; ++i) {
    const int row = first + i * at_a_time;
    const bool of_x = row < S::rows;
    const int last = of_x ? args.m - 1 : args.n - 1;  // what lies outside is read from inside
    const int inside = min(of_x ? row : n0 + row - S::rows, last);
    from[i] =
        (of_x ? x : w) + static_cast<std::int64_t>(inside) * args.k + rank * S::stage_k + 4 * quad;
  }
  const auto place = [](int row, int quad) { return row * S::stage_k + 4 * (quad ^ (row % 8)); };
  const int to = place(first, quad);
  const auto fetch = [&](int slot, int stage) {
    const bool there = (stage * blocks + rank) * S::stage_k + 4 * quad < args.k;
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      if (all_rows % at_a_time != 0 && first + i * at_a_time >= all_rows) break;
      copy_async<16>(shared + slot * S::stage_size + to + i * at_a_time * S::stage_k, from[i],
                     there);
      from[i] += blocks * S::stage_k;
    }
    commit_copies();
  };
  const int stages = (args.k + S::stage_k * blocks - 1) / (S::stage_k * blocks);
  wait_for_previous_kernel();
#pragma unroll
  for (int stage = 0; stage < S::stages; ++stage) fetch(stage, stage);
  const Results<float, S> results(args, n0);

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int lane_m = (lane & 1) | (lane >> 3 & 2);
  const int lane_n = lane >> 1 & 7;
  constexpr int rows = S::rows / 4;  // of a thread
  constexpr int columns = S::columns / 8;
  float sums[rows][columns] = {};
  int slot = 0;
  for (int stage = 0; stage < stages; ++stage) {
    wait_for_copies<S::stages - 1>();
    __syncthreads();
    const float* const here = shared + slot * S::stage_size;
#pragma unroll
    for (int u = 0; u < S::quads; ++u) {
      float a[rows][4];
      float b[columns][4];
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        *reinterpret_cast<float4*>(a[i]) =
            *reinterpret_cast<const float4*>(here + place(lane_m + 4 * i, warp * S::quads + u));
      }
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        *reinterpret_cast<float4*>(b[j]) = *reinterpret_cast<const float4*>(
            here + place(S::rows + lane_n + 8 * j, warp * S::quads + u));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int j = 0; j < columns; ++j) {
#pragma unroll
          for (int p = 0; p < rows; ++p) {
            const int i = j % 2 == 0 ? p : rows - 1 - p;  // a factor is that of the product before
            sums[i][j] = fmaf(a[i][k], b[j][k], sums[i][j]);
          }
        }
      }
    }
    if (stage + S::stages < stages) {
      __syncthreads();
      fetch(slot, stage + S::stages);
    } else {
      commit_copies();  // none: the wait above counts
    }
    slot = slot + 1 == S::stages ? 0 : slot + 1;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < rows; ++i) {
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      shared[warp * S::part_size + (lane_m + 4 * i) * S::pitch + lane_n + 8 * j] = sums[i][j];
    }
  }
  __syncthreads();
  results.reduce(shared, reinterpret_cast<float2*>(shared + S::inbox));
#endif
}

/// Launches a kernel in clusters large enough for all multiprocessors to work, while each warp has
/// `step` of k.
template <class S, auto kernel>
Status launch_slices(const Call& call, const Gemm& gemm, std::int64_t step) {
  static DeviceNumbers<> multiprocessors;
  int count = 0;
  const int device = call.execution.device_index;
  const cudaError_t error = multiprocessors.get(device, 0, count, [&](int& number) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(S::bytes));
    if (error != cudaSuccess) return error;
    return cudaDeviceGetAttribute(&number, cudaDevAttrMultiProcessorCount, device);
  });
  if (Status status = check(call, error); !status.ok()) return status;
  const unsigned slices = blocks_for(gemm.n, S::columns);
  unsigned cluster = 1;
  while (cluster < S::most_blocks && 2 * cluster * slices <= static_cast<unsigned>(count) &&
         2 * cluster * step <= gemm.k) {
    cluster *= 2;
  }
  const Arguments args{gemm.a,
                       gemm.b,
                       gemm.bias,
                       gemm.d,
                       gemm.sum,
                       static_cast<int>(gemm.m),
                       static_cast<int>(gemm.n),
                       static_cast<int>(gemm.k),
                       gemm.activation};
  return launch(call, kernel, {slices * cluster, S::threads, S::bytes, cluster > 1 ? cluster : 0},
                args);
}

Status launch_floats(const Call& call, const Gemm& gemm) {
  const auto launch = [&]<class S>(TypeTag<S>) {
    return launch_slices<S, skinny_floats<S>>(call, gemm, S::stage_k);
  };
  if (gemm.m <= 8) return launch(TypeTag<FloatSlice<8, 48, 12, 2, 4>>{});
  if (gemm.m <= 16) return launch(TypeTag<FloatSlice<16, 48, 12, 2, 4>>{});
  if (gemm.m <= 32) return launch(TypeTag<FloatSlice<32, 48, 12, 2, 4>>{});
  return launch(TypeTag<FloatSlice<64, 24, 8, 4, 3>>{});
}

template <class T>
Status launch_halves(const Call& call, const Gemm& gemm) {
  constexpr int depth = 2;
  const auto launch = [&]<class S>(TypeTag<S>) {
    return launch_slices<S, skinny_halves<T, S, depth>>(call, gemm, 32 * S::warps);
  };
  if (gemm.m <= 16) return launch(TypeTag<HalfSlice<16, 24, 12>>{});
  if (gemm.m <= 32) return launch(TypeTag<HalfSlice<32, 24, 12>>{});
  return launch(TypeTag<HalfSlice<64, 24, 8>>{});
}

}  // namespace

bool takes_skinny(const Gemm& gemm, int device) {
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const bool dtype =
      gemm.dtype == DType::float32 || gemm.dtype == DType::float16 || gemm.dtype == DType::bfloat16;
  if (!dtype || gemm.batch != 1 || gemm.a_transposed || !gemm.b_transposed) return false;
  if (gemm.m < 1 || gemm.m > 64 || gemm.n < 1 || gemm.n > most || gemm.k < 1 || gemm.k > most) {
    return false;
  }
  const auto size = static_cast<std::int64_t>(size_of(gemm.dtype));
  const auto pairs = [&](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % (2 * size) == 0;
  };
  return gemm.k * size % vector_bytes == 0 && misalignment(gemm.a) == 0 &&
         misalignment(gemm.b) == 0 && gemm.n % 2 == 0 && pairs(gemm.d) && pairs(gemm.sum) &&
         pairs(gemm.bias) && has_programmatic_launch(device);
}

Status skinny_gemm(const Call& call, const Gemm& gemm) {
  if (gemm.dtype == DType::float16) return launch_halves<Half>(call, gemm);
  if (gemm.dtype == DType::bfloat16) return launch_halves<BFloat16>(call, gemm);
  return launch_floats(call, gemm);
}

}  // namespace cudarelu::cuda

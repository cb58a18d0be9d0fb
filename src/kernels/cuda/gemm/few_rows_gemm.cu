// A block computes some columns of up to 64 rows of the result. The copy engine brings x and the
// weights to shared memory in parts: 128 bytes of k of these rows. Each warp takes its parts and
// adds up their products for all elements; then the sums of the warps are added in a fixed order.
// So each weight is read by one block for these rows, copies take few instructions, and most
// operands are in flight at the same time. The code is short, since most of it is executed once. If
// the columns do not suffice for all multiprocessors, the blocks of a cluster may divide k.
#include <algorithm>

#include "cuda/gemm/conditions.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/few_rows_gemm.h"
#include "cuda/gemm/tiles.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/pipeline.cuh"
#include "cuda/tile/swizzled_matrix.cuh"
#include "cuda/tile/tensor_map.h"
#include "cuda/tile/threads.cuh"
#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/cluster.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/types.h"

namespace cudarelu::gpu {
namespace {

constexpr int max_shared_bytes = 227 * 1024;
constexpr int half_shared_bytes = 113 * 1024;  // for each of two blocks on a multiprocessor
constexpr int third_shared_bytes = 75 * 1024;  // for each of three, of 228 KiB, less 1 KiB a block
constexpr int line = 128;                      // bytes of a row in a part
constexpr int max_splits = 8;                  // blocks that divide k

/// The shape of a block: its rows and columns at most, and its warps.
/// `split_k`: the blocks of a cluster have the same columns and divide k. They exchange their sums,
/// and each finishes some of the results.
template <class T_, int rows_, int columns_, int warps_, bool split_k_ = false>
struct FewRowsConfig {
  using T = T_;
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int warps = warps_;
  static constexpr bool split_k = split_k_;
  static constexpr int threads = 32 * warps;
  static constexpr int part = line / sizeof(T);  // elements of k
  static constexpr int part_bytes = (rows + columns) * line;
  static constexpr int pairs = rows * columns / 2;  // of neighbours in a row of the result
  /// The slots for parts of all warps, and their barriers.
  static constexpr int slots_bytes(int slots) { return warps * slots * (part_bytes + 8); }
  /// For `slots` slots for parts in each warp, and for the sums of the blocks that divide k, with a
  /// barrier. With two slots, only one block fits on a multiprocessor, with one slot two: the
  /// blocks of the next kernel, which start early, do not crowd on a few multiprocessors.
  static constexpr int shared_bytes(int slots) {
    const int bytes = slots_bytes(slots) + (split_k ? (pairs + max_splits) * 8 + 8 : 0);
    return std::max(bytes, third_shared_bytes + 1);
  }
  static_assert(shared_bytes(2) <= max_shared_bytes && shared_bytes(2) > half_shared_bytes);
  static_assert(shared_bytes(1) <= half_shared_bytes && 3 * (shared_bytes(1) + 1024) > 228 * 1024);
  // The pairs that a thread finishes. At least two blocks divide k.
  static constexpr int own_pairs = ((split_k ? pairs / 2 : pairs) + threads - 1) / threads;
  // Of the sums in shared memory: the rows that a warp writes are in different banks.
  static constexpr int pitch = columns + (columns % 16 == 0 ? 8 : 0);
};

/// n in units of 8 columns: a block has `each` of them, one of the first `more` blocks one more.
struct Shares {
  int each;
  int more;
};

struct Arguments {
  CUtensorMap x;  // [m, k]
  CUtensorMap w;  // [n, k]
  Results results;
  Shares shares;
  int m;
  int n;
  int k;
  int rows;   // of a block; the last ones may have fewer
  int slots;  // for parts, of a warp: 1 or 2
};

#if __CUDA_ARCH__ >= 900

/// Whether this is the thread of the warp that acts for it.
__device__ __forceinline__ bool is_elected() {
  unsigned elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The products of parts of x and of the weights, in a warp.
template <class S, class T = typename S::T>
class Products {
 public:
  /// `part` is the address of a part's rows of x, which those of the weights follow.
  __device__ explicit Products(unsigned part)
      : x_(part + swizzled<line>(lane() % 16, lane() / 16)),
        w_(part + S::rows * line + swizzled<line>(lane() % 8, lane() / 8)) {}

  __device__ void add_part(unsigned offset) {
    const unsigned x = x_ + offset;
    const unsigned w = w_ + offset;
#pragma unroll
    for (unsigned step = 0; step < 4; step += 2) {  // 32 bytes each
      unsigned b[S::columns / 8][4];                // of both
#pragma unroll
      for (int j = 0; j < S::columns / 8; ++j) {
        load_matrices<false>(b[j], (w ^ step * 32) + j * 8 * line);
      }
#pragma unroll
      for (unsigned s = 0; s < 2; ++s) {
        unsigned a[S::rows / 16][4];
#pragma unroll
        for (int i = 0; i < S::rows / 16; ++i) {
          load_matrices<false>(a[i], (x ^ (step + s) * 32) + i * 16 * line);
        }
#pragma unroll
        for (int i = 0; i < S::rows / 16; ++i) {
#pragma unroll
          for (int j = 0; j < S::columns / 8; ++j) {
            multiply<T>(sums_[i][j], a[i], b[j][2 * s], b[j][2 * s + 1]);
          }
        }
      }
    }
  }

  __device__ void write(float* to) const {
    float* const first = to + lane() / 4 * S::pitch + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < S::rows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < S::columns / 8; ++j) {
        const auto& sums = sums_[i][j];
        float* const at = first + 16 * i * S::pitch + 8 * j;
        *reinterpret_cast<float2*>(at) = {sums[0], sums[1]};
        *reinterpret_cast<float2*>(at + 8 * S::pitch) = {sums[2], sums[3]};
      }
    }
  }

 private:
  __device__ static unsigned lane() { return threadIdx.x % 32; }

  const unsigned x_;
  const unsigned w_;
  float sums_[S::rows / 16][S::columns / 8][4] = {};
};

/// In float32, without tensor cores: a thread has 1/4 of the rows and 1/8 of the columns.
template <class S>
class Products<S, float> {
 public:
  __device__ explicit Products(unsigned part)
      : x_(part + swizzled<line>(row(), 0U)),
        w_(part + S::rows * line + swizzled<line>(column(), 0U)) {}

  __device__ void add_part(unsigned offset) {
    const unsigned x = x_ + offset;
    const unsigned w = w_ + offset;
#pragma unroll at_once
    for (unsigned vector = 0; vector < line / 16; ++vector) {
      float a[rows][4];
      float b[columns][4];
#pragma unroll
      for (unsigned i = 0; i < rows; ++i) {
        load(a[i], (x ^ (vector ^ i % 2 * 4) * 16) + i * 4 * line);
      }
#pragma unroll
      for (unsigned j = 0; j < columns; ++j) load(b[j], (w ^ vector * 16) + j * 8 * line);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int j = 0; j < columns; ++j) {
#pragma unroll
          for (int p = 0; p < rows; ++p) {
            const int i = j % 2 == 0 ? p : rows - 1 - p;  // keeps a factor of the last product
            sums_[i][j] = fmaf(a[i][k], b[j][k], sums_[i][j]);
          }
        }
      }
    }
  }

  __device__ void write(float* to) const {
    float* const first = to + row() * S::pitch + column();
#pragma unroll
    for (int i = 0; i < rows; ++i) {
#pragma unroll
      for (int j = 0; j < columns; ++j) first[4 * i * S::pitch + 8 * j] = sums_[i][j];
    }
  }

 private:
  static constexpr int rows = S::rows / 4;        // every fourth
  static constexpr int columns = S::columns / 8;  // every eighth
  // Few products do not hide the latency of loads: two vectors are loaded at a time.
  static constexpr int at_once = columns == 1 ? 2 : 1;

  __device__ static unsigned row() { return row_of_thread(threadIdx.x); }
  __device__ static unsigned column() { return column_of_thread(threadIdx.x); }
  __device__ static void load(float (&to)[4], unsigned from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(from)
                 : "memory");
  }

  const unsigned x_;
  const unsigned w_;
  float sums_[rows][columns] = {};
};

#endif

template <class S>
__global__ void __launch_bounds__(S::threads, 2)
    few_rows_kernel(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
  using T = typename S::T;
  let_next_kernel_start();
  extern __shared__ __align__(1024) char shared[];
  const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // uniform for the compiler
  const int slots = args.slots;
  char* const mine = shared + warp * slots * S::part_bytes;
  auto* const barriers =
      reinterpret_cast<std::uint64_t*>(shared + S::warps * slots * S::part_bytes) + warp * slots;
  auto block = static_cast<int>(blockIdx.x);
  int splits = 1;
  int rank = 0;
  if constexpr (S::split_k) {
    splits = static_cast<int>(blocks_of_cluster());
    rank = static_cast<int>(rank_in_cluster());
    block /= splits;
  }
  const int m0 = static_cast<int>(blockIdx.y) * args.rows;
  const auto rows = [&] { return min(args.m - m0, args.rows); };  // a value would be spilled
  const int n0 = (block * args.shares.each + min(block, args.shares.more)) * 8;
  const int n1 = min(n0 + (args.shares.each + (block < args.shares.more ? 1 : 0)) * 8, args.n);
  const int parts = (args.k + S::part - 1) / S::part;
  const int first_part = rank * S::warps + static_cast<int>(warp);
  const int part_step = splits * S::warps;
  // The block finishes `share` pairs. It receives their sums from each block of the cluster:
  // [splits, share].
  const int share = (S::pairs + splits - 1) / splits;
  const int first_pair = rank * share;
  auto* const sums_of_blocks = reinterpret_cast<std::uint64_t*>(shared + S::slots_bytes(slots));
  std::uint64_t* const have_sums = sums_of_blocks + splits * share;
  const bool leads = is_elected();
  const auto fetch = [&](int slot, int part) {
    if (!leads || part >= parts) return;
    char* const to = mine + slot * S::part_bytes;
    expect(&barriers[slot], (args.rows + S::columns) * line);
    const std::int32_t at_w[3] = {part * S::part, n0, 0};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to + S::rows * line, &args.w,
                              at_w, &barriers[slot]);
    const std::int32_t at_x[3] = {part * S::part, m0, 0};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &args.x, at_x,
                              &barriers[slot]);
  };
  if (leads) {
    prefetch(args.x);
    prefetch(args.w);
#pragma unroll 1
    for (int slot = 0; slot < slots; ++slot) ptx::mbarrier_init(&barriers[slot], 1);
    if (S::split_k && warp == 0) {
      const int pairs = min(max(rows() * (S::columns / 2) - first_pair, 0), share);
      ptx::mbarrier_init(have_sums, 1);
      expect(have_sums, splits * pairs * 8);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncwarp();
  if constexpr (S::split_k) arrive_at_cluster();
  Products<S> products(static_cast<unsigned>(__cvta_generic_to_shared(mine)));
  // The pairs that the thread finishes begin with the bias, which is loaded early.
  float values[S::own_pairs][2] = {};
  const auto for_each_own = [&](const auto& visit) {
    const int m = rows();
#pragma unroll
    for (int i = 0; i < S::own_pairs; ++i) {
      const unsigned of_share = threadIdx.x + i * S::threads;
      if (S::split_k && of_share >= static_cast<unsigned>(share)) break;
      const unsigned pair = first_pair + of_share;
      const auto row = static_cast<int>(pair / (S::columns / 2));
      const auto column = static_cast<int>(pair % (S::columns / 2) * 2);
      if (row < m && n0 + column < n1) visit(values[i], row, column);
    }
  };

  wait_for_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < slots; ++slot) fetch(slot, first_part + slot * part_step);
  if (args.results.bias != nullptr) {
    for_each_own([&](float (&value)[2], int, int column) {
      const T* const bias = static_cast<const T*>(args.results.bias) + n0 + column;
      value[0] = load(bias[0]);
      value[1] = load(bias[1]);
    });
  }

  int slot = 0;
  unsigned parity = 0;
#pragma unroll 1
  for (int part = first_part; part < parts; part += part_step) {
    wait(&barriers[slot], parity);
    products.add_part(slot * S::part_bytes);
    __syncwarp();
    fetch(slot, part + slots * part_step);
    slot = slot + 1 == slots ? 0 : slot + 1;
    if (slot == 0) parity ^= 1;
  }
  static_assert(S::rows * S::pitch * sizeof(float) <= S::part_bytes);
  products.write(reinterpret_cast<float*>(mine));
  __syncthreads();
  const auto add_warps = [&](float (&value)[2], int row, int column) {
    const char* sums = shared + (row * S::pitch + column) * sizeof(float);
#pragma unroll
    for (int i = 0; i < S::warps; ++i, sums += slots * S::part_bytes) {
      add(value, reinterpret_cast<const float*>(sums));
    }
  };
  if constexpr (S::split_k) {
    wait_for_cluster();
#pragma unroll 1
    for (auto pair = static_cast<int>(threadIdx.x); pair < rows() * (S::columns / 2);
         pair += S::threads) {
      float value[2] = {};
      add_warps(value, pair / (S::columns / 2), pair % (S::columns / 2) * 2);
      const int owner = pair / share;
      const std::uint64_t second = __float_as_uint(value[1]);
      ptx::st_async(of_cluster(sums_of_blocks + rank * share + pair % share, owner),
                    second << 32 | __float_as_uint(value[0]), of_cluster(have_sums, owner));
    }
    // The block does not end before, so that no block sends to one that has ended.
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, have_sums, 0)) {
    }
  }
  for_each_own([&](float (&value)[2], int row, int column) {
    if constexpr (S::split_k) {
      const auto* sums = sums_of_blocks + (row * S::columns + column) / 2 - first_pair;
      for (int i = 0; i < splits; ++i, sums += share) {
        add(value, reinterpret_cast<const float*>(sums));
      }
    } else {
      add_warps(value, row, column);
    }
    Results without_bias = args.results;
    without_bias.bias = nullptr;
    finish<T>(without_bias, value, static_cast<std::int64_t>(m0 + row) * args.n + n0 + column, 0);
  });
#endif
}

/// A block's rows of the result are one of these tiles, of about the same size.
template <class S>
int tiles_of(const Gemm& gemm) {
  return static_cast<int>(ceil_div(gemm.m, S::rows));
}

int units_of(const Gemm& gemm) { return static_cast<int>(ceil_div(gemm.n, 8)); }

template <class S>
std::int64_t parts_of(const Gemm& gemm) {
  return ceil_div(gemm.k, S::part);
}

/// Starts `blocks` blocks, or as many clusters of `splits` blocks, for all columns of each tile.
template <class S>
Status launch_blocks(const Call& call, const Gemm& gemm, int blocks, int slots, int splits) {
  constexpr auto kernel = few_rows_kernel<S>;
  if (Status status = allow_shared_memory<kernel>(call, S::shared_bytes(2)); !status.ok()) {
    return status;
  }
  const int units = units_of(gemm);
  const int tiles = tiles_of<S>(gemm);
  Arguments args{.x = {},
                 .w = {},
                 .results = results_of(gemm),
                 .shares = {units / blocks, units % blocks},
                 .m = static_cast<int>(gemm.m),
                 .n = static_cast<int>(gemm.n),
                 .k = static_cast<int>(gemm.k),
                 .rows = static_cast<int>(ceil_div(gemm.m, tiles)),
                 .slots = slots};
  const auto describe_rows = [&](CUtensorMap& map, const void* data, std::int64_t rows, int box) {
    return describe(call, map, gemm.dtype, data, 1, rows, gemm.k, box);
  };
  // The copy engine takes up to 1.7 times as long if it fills rows that x does not have (H100).
  if (Status status = describe_rows(args.x, gemm.a, gemm.m, args.rows); !status.ok()) return status;
  if (Status status = describe_rows(args.w, gemm.b, gemm.n, S::columns); !status.ok()) {
    return status;
  }
  const auto shared_bytes = static_cast<std::size_t>(S::shared_bytes(slots));
  const dim3 all_blocks(static_cast<unsigned>(blocks * splits), static_cast<unsigned>(tiles));
  const Grid grid{all_blocks, S::threads, shared_bytes,
                  S::split_k ? static_cast<unsigned>(splits) : 0};
  return launch(call, kernel, grid, args);
}

template <class S>
Status launch_blocks_of(const Call& call, const Gemm& gemm, int multiprocessors) {
  const int units = units_of(gemm);
  const int tiles = tiles_of<S>(gemm);
  auto blocks = static_cast<int>(blocks_for(units, S::columns / 8));
  // If there are more blocks than multiprocessors, they run in pairs, of which one may start or end
  // while the other multiplies.
  const bool in_pairs = blocks * tiles > multiprocessors;
  // A block on each multiprocessor, if each then reads at most one unit that it does not need.
  const int slots_of_gpu = (in_pairs ? 2 : 1) * multiprocessors / tiles;
  if (blocks < slots_of_gpu && units >= (S::columns / 8 - 1) * slots_of_gpu) blocks = slots_of_gpu;
  // If the warps need no second slot and no multiprocessor is idle, a block of the next kernel can
  // be ready beside each of these.
  const bool leaves_slot = blocks * tiles == multiprocessors && parts_of<S>(gemm) <= S::warps;
  return launch_blocks<S>(call, gemm, blocks, in_pairs || leaves_slot ? 1 : 2, 1);
}

/// The number of blocks that divide k, or 1: slices without clusters. All clusters are resident at
/// the same time, and each warp has a part of k.
template <class S>
int splits_of(const Call& call, const Gemm& gemm, int multiprocessors) {
  constexpr bool is_half = sizeof(typename S::T) == 2;
  const std::int64_t parts = parts_of<S>(gemm);
  if (is_half && S::rows <= 32 && parts < 128) return 1;
  const std::int64_t clusters = ceil_div(gemm.n, S::columns) * tiles_of<S>(gemm);
  const std::int64_t limit =
      std::min({parts / S::warps, multiprocessors / clusters, std::int64_t{max_splits}});
  auto splits = static_cast<int>(limit);
  const auto run_at_once = [&] {
    const auto blocks = static_cast<unsigned>(splits);
    const Grid grid{blocks, S::threads, static_cast<std::size_t>(S::shared_bytes(2)), blocks};
    return clusters <=
           resident<few_rows_kernel<S>, max_splits + 1>(call, grid, splits, S::shared_bytes(2));
  };
  while (splits > 1 && !run_at_once()) --splits;
  // Fewer blocks do not make up for the exchange, as measured on an H100. Of 32 rows in float32,
  // few columns have slices of 8, which all multiprocessors share.
  const bool narrow = S::rows == 32 && !is_half && gemm.n <= 8 * multiprocessors;
  const int min_splits = narrow ? 4 : S::rows <= 16 || parts < 64 ? 3 : 2;
  return splits < min_splits ? 1 : splits;
}

template <class T, int rows, int warps>
Status launch_rows(const Call& call, const Gemm& gemm) {
  const int multiprocessors =
      number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
  using Split = FewRowsConfig<T, rows, 32, warps, true>;
  if (const int splits = splits_of<Split>(call, gemm, multiprocessors); splits > 1) {
    const auto clusters = static_cast<int>(ceil_div(gemm.n, Split::columns));
    return launch_blocks<Split>(call, gemm, clusters, 2, splits);
  }
  // How often the blocks fill the multiprocessors in pairs; 0 if each has its own.
  const auto waves = [&](int columns) {
    const std::int64_t blocks = ceil_div(gemm.n, columns) * tiles_of<Split>(gemm);
    return blocks <= multiprocessors ? 0 : ceil_div(blocks, 2 * multiprocessors);
  };
  if constexpr (rows == 32) {
    if (waves(8) == 0) {
      return launch_blocks_of<FewRowsConfig<T, rows, 8, warps>>(call, gemm, multiprocessors);
    }
  }
  if (waves(24) == waves(32)) {  // wider blocks would not end earlier
    return launch_blocks_of<FewRowsConfig<T, rows, 24, warps>>(call, gemm, multiprocessors);
  }
  return launch_blocks_of<FewRowsConfig<T, rows, 32, warps>>(call, gemm, multiprocessors);
}

template <class T>
Status launch_type(const Call& call, const Gemm& gemm) {
  if constexpr (sizeof(T) == 4) {
    if (gemm.m <= 8) return launch_rows<T, 8, 16>(call, gemm);
  }
  if (gemm.m <= 16) return launch_rows<T, 16, 16>(call, gemm);
  if (gemm.m <= 32) return launch_rows<T, 32, 12>(call, gemm);
  return launch_rows<T, 64, 8>(call, gemm);
}

}  // namespace

bool takes_few_rows(const Gemm& gemm, int device) {
  constexpr std::int64_t limit = std::int64_t{1} << 30;
  const bool dtype =
      gemm.dtype == DType::float32 || gemm.dtype == DType::float16 || gemm.dtype == DType::bfloat16;
  if (!dtype || gemm.batch != 1 || gemm.a_transposed || !gemm.b_transposed) return false;
  const std::int64_t max_rows = gemm.dtype == DType::float32 ? 64 : 64 * 65535;  // of a grid
  if (gemm.m < 1 || gemm.m > max_rows || gemm.n < 1 || gemm.n > limit || gemm.k < 1 ||
      gemm.k > limit) {
    return false;
  }
  const auto size = static_cast<std::int64_t>(size_of(gemm.dtype));
  const auto pairs = [&](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % (2 * size) == 0;
  };
  return gemm.k * size % vector_bytes == 0 && misalignment(gemm.a) == 0 &&
         misalignment(gemm.b) == 0 && gemm.n % 2 == 0 && pairs(gemm.d) && pairs(gemm.sum) &&
         pairs(gemm.bias) && pairs(gemm.other) && has_programmatic_launch(device) &&
         number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device) >= max_shared_bytes;
}

bool prefers_few_rows(const Gemm& gemm, int /*device*/) {
  const std::int64_t blocks = (gemm.m + 63) / 64 * ((gemm.n + 31) / 32);
  // Tiles of 64 rows take too long if there are more of them than multiprocessors, or if k is long.
  if (!has_few_rows(gemm)) return blocks <= 128 && gemm.k * blocks <= 3 << 16;
  if (is_half(gemm)) {
    if (blocks <= 128 || !suits_cublaslt(gemm)) return true;
    // With many columns, cuBLASLt reads x less often.
    const std::int64_t rows = lacks_epilogue(gemm) ? 32 : 16;
    return gemm.m <= (gemm.n <= 16384 ? 2 * rows : rows);
  }
  // In float32 with a long k, cuBLASLt is as fast for one row, divides k into more parts where
  // there are few columns, and may use TF32.
  if (gemm.k <= gemm.n) return true;
  if (gemm.m == 1) return false;
  if (gemm.m <= 32 && gemm.n <= 1024 && gemm.k <= 4 * gemm.n) return true;
  const bool few_columns = gemm.m <= 32 ? gemm.n <= 4096 : gemm.n <= 2048 && gemm.k > 1024;
  return few_columns && gemm.n >= 256 && gemm.k <= 16 * gemm.n && !gemm.allow_tf32;
}

Status few_rows_gemm(const Call& call, const Gemm& gemm) {
  if (gemm.dtype == DType::float16) return launch_type<Half>(call, gemm);
  if (gemm.dtype == DType::bfloat16) return launch_type<BFloat16>(call, gemm);
  return launch_type<float>(call, gemm);
}

}  // namespace cudarelu::gpu

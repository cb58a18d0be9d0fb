// A block takes some columns of the result. The copy engine brings x and the weights into shared
// memory, 128 bytes of k of all their rows at a time; the block's warps share these parts out, each
// adds up its own for all elements, and the sums are added together in a fixed order. So no two
// blocks read the same weight, few instructions are spent on copies, and most of the operands are
// under way at once.
#include <cuda/ptx>

#include "cuda/alignment.h"
#include "cuda/gemm/mma.cuh"
#include "cuda/gemm/skinny.h"
#include "cuda/gemm/tensor_map.h"
#include "cuda/gemm/tiles.cuh"
#include "cuda/launch.cuh"
#include "types.h"

namespace cudarelu::cuda {
namespace {

constexpr int line = 128;  // bytes of a row in a part
constexpr int most_shared_bytes = 227 * 1024;

/// Of a block: its rows (of x, or more) and columns, and its warps.
template <class T_, int rows_, int columns_, int warps_>
struct Slice {
  using T = T_;
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int warps = warps_;
  static constexpr int threads = 32 * warps;
  static constexpr int part = line / sizeof(T);  // elements of k
  static constexpr int part_bytes = (rows + columns) * line;
  static constexpr int slots = 2;  // of a warp, for parts
  // So much that a multiprocessor has one block: the next kernel's do not gather on a few.
  static constexpr int warp_bytes = slots * part_bytes;
  static constexpr int shared_bytes = warps * (warp_bytes + slots * 8);
  static_assert(shared_bytes > 114 * 1024 && shared_bytes <= most_shared_bytes);
  static constexpr int pairs = rows * columns / 2;  // of neighbours in a row of the result
  static constexpr int own_pairs = (pairs + threads - 1) / threads;
  // Of the sums in shared memory, such that the rows which a warp writes are in different banks.
  static constexpr int pitch = columns + (columns % 16 == 0 ? 8 : 0);
};

struct Arguments {
  CUtensorMap x;  // [m, k]
  CUtensorMap w;  // [n, k]
  Results results;
  int m;
  int n;
  int k;
};

#if __CUDA_ARCH__ >= 900

namespace ptx = ::cuda::ptx;

/// Where 16 bytes of a row lie in a part, as the copy engine spreads them over the banks.
__device__ __forceinline__ const char* place(const char* part, int row, int vector) {
  return part + row * line + (vector ^ row % 8) * 16;
}

/// The products of a part of x and one of the weights, in a warp.
template <class S, class T = typename S::T>
class Products {
 public:
  __device__ void add_part(const char* x, const char* w) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int step = 0; step < 4; step += 2) {  // 32 bytes each
      unsigned b[S::columns / 8][4];           // of both
#pragma unroll
      for (int j = 0; j < S::columns / 8; ++j) {
        load_matrices<false>(b[j], place(w, 8 * j + lane % 8, 2 * step + lane / 8));
      }
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int i = 0; i < S::rows / 16; ++i) {
          unsigned a[4];
          load_matrices<false>(a, place(x, 16 * i + lane % 16, 2 * (step + s) + lane / 16));
#pragma unroll
          for (int j = 0; j < S::columns / 8; ++j) {
            multiply<T>(sums_[i][j], a, b[j][2 * s], b[j][2 * s + 1]);
          }
        }
      }
    }
  }

  __device__ void write(float* to) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < S::rows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < S::columns / 8; ++j) {
        const auto& sums = sums_[i][j];
        float* const at = to + (16 * i + lane / 4) * S::pitch + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = {sums[0], sums[1]};
        *reinterpret_cast<float2*>(at + 8 * S::pitch) = {sums[2], sums[3]};
      }
    }
  }

 private:
  float sums_[S::rows / 16][S::columns / 8][4] = {};
};

/// In float32, without tensor cores: a thread has a quarter of the rows and an eighth of the
/// columns.
template <class S>
class Products<S, float> {
 public:
  __device__ void add_part(const char* x, const char* w) {
#pragma unroll 1
    for (int vector = 0; vector < line / 16; ++vector) {
      float a[rows][4];
      float b[columns][4];
#pragma unroll
      for (int i = 0; i < rows; ++i) load(a[i], place(x, row(i), vector));
#pragma unroll
      for (int j = 0; j < columns; ++j) load(b[j], place(w, column(j), vector));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int j = 0; j < columns; ++j) {
#pragma unroll
          for (int p = 0; p < rows; ++p) {
            const int i = j % 2 == 0 ? p : rows - 1 - p;  // a factor is that of the product before
            sums_[i][j] = fmaf(a[i][k], b[j][k], sums_[i][j]);
          }
        }
      }
    }
  }

  __device__ void write(float* to) const {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
#pragma unroll
      for (int j = 0; j < columns; ++j) to[row(i) * S::pitch + column(j)] = sums_[i][j];
    }
  }

 private:
  static constexpr int rows = S::rows / 4;
  static constexpr int columns = S::columns / 8;

  // Neighbours in pairs and in pairs of pairs read the same words: a warp's vectors take few turns.
  __device__ static int row(int i) { return 4 * i + (threadIdx.x & 1) + (threadIdx.x >> 3 & 2); }
  __device__ static int column(int j) { return 8 * j + (threadIdx.x >> 1 & 7); }
  __device__ static void load(float (&to)[4], const char* from) {
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
  }

  float sums_[rows][columns] = {};
};

#endif

template <class S>
__global__ void __launch_bounds__(S::threads)
    skinny_kernel(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
  using T = typename S::T;
  let_next_kernel_start();
  extern __shared__ __align__(1024) char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  char* const mine = shared + warp * S::warp_bytes;
  auto* const barriers =
      reinterpret_cast<std::uint64_t*>(shared + S::warps * S::warp_bytes) + warp * S::slots;
  const int n0 = static_cast<int>(blockIdx.x) * S::columns;
  const int parts = (args.k + S::part - 1) / S::part;
  const bool leads = threadIdx.x % 32 == 0;
  const auto fetch = [&](int slot, int part) {
    if (!leads || part >= parts) return;
    char* const to = mine + slot * S::part_bytes;
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared,
                                   &barriers[slot], S::part_bytes);
    const std::int32_t at_w[3] = {part * S::part, n0, 0};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to + S::rows * line, &args.w,
                              at_w, &barriers[slot]);
    const std::int32_t at_x[3] = {part * S::part, 0, 0};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &args.x, at_x,
                              &barriers[slot]);
  };
  if (leads) {
    for (int slot = 0; slot < S::slots; ++slot) ptx::mbarrier_init(&barriers[slot], 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncwarp();
  wait_for_previous_kernel();
  for (int slot = 0; slot < S::slots; ++slot) fetch(slot, warp + slot * S::warps);

  // The pairs that the thread finishes begin with the bias, which is asked for early.
  float values[S::own_pairs][2] = {};
  const auto for_each_own = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < S::own_pairs; ++i) {
      const int pair = static_cast<int>(threadIdx.x) + i * S::threads;
      const int row = pair / (S::columns / 2);
      const int column = pair % (S::columns / 2) * 2;
      if (pair < S::pairs && row < args.m && n0 + column < args.n) visit(values[i], row, column);
    }
  };
  if (args.results.bias != nullptr) {
    for_each_own([&](float (&value)[2], int, int column) {
      const T* const bias = static_cast<const T*>(args.results.bias) + n0 + column;
      value[0] = load(bias[0]);
      value[1] = load(bias[1]);
    });
  }

  Products<S> products;
  int slot = 0;
  unsigned parity = 0;
  for (int part = warp; part < parts; part += S::warps) {
    while (!ptx::mbarrier_try_wait_parity(&barriers[slot], parity)) {
    }
    const char* const x = mine + slot * S::part_bytes;
    products.add_part(x, x + S::rows * line);
    __syncwarp();
    fetch(slot, part + S::slots * S::warps);
    slot = slot + 1 == S::slots ? 0 : slot + 1;
    if (slot == 0) parity ^= 1;
  }
  static_assert(S::rows * S::pitch * sizeof(float) <= S::part_bytes);
  products.write(reinterpret_cast<float*>(mine));
  __syncthreads();
  for_each_own([&](float (&value)[2], int row, int column) {
#pragma unroll
    for (int i = 0; i < S::warps; ++i) {
      add(value,
          reinterpret_cast<const float*>(shared + i * S::warp_bytes) + row * S::pitch + column);
    }
    const Results without_bias{nullptr, args.results.d, args.results.sum, args.results.activation};
    finish<T>(without_bias, value, static_cast<std::int64_t>(row) * args.n + n0 + column, 0);
  });
#endif
}

template <class S>
Status launch_slices(const Call& call, const Gemm& gemm) {
  constexpr auto kernel = skinny_kernel<S>;
  if (Status status = allow_shared_memory<kernel>(call, S::shared_bytes); !status.ok()) {
    return status;
  }
  Arguments args{.x = {},
                 .w = {},
                 .results = {gemm.bias, gemm.d, gemm.sum, gemm.activation},
                 .m = static_cast<int>(gemm.m),
                 .n = static_cast<int>(gemm.n),
                 .k = static_cast<int>(gemm.k)};
  const auto describe_rows = [&](CUtensorMap& map, const void* data, std::int64_t rows, int box) {
    return describe(call, map, gemm.dtype, data, 1, rows, gemm.k, box);
  };
  if (Status status = describe_rows(args.x, gemm.a, gemm.m, S::rows); !status.ok()) return status;
  if (Status status = describe_rows(args.w, gemm.b, gemm.n, S::columns); !status.ok()) {
    return status;
  }
  return launch(call, kernel, {blocks_for(gemm.n, S::columns), S::threads, S::shared_bytes}, args);
}

template <class T, int columns>
Status launch_rows(const Call& call, const Gemm& gemm) {
  if (gemm.m <= 16) return launch_slices<Slice<T, 16, columns, 16>>(call, gemm);
  if (gemm.m <= 32) return launch_slices<Slice<T, 32, columns, 12>>(call, gemm);
  return launch_slices<Slice<T, 64, columns, 8>>(call, gemm);
}

template <class T>
Status launch_type(const Call& call, const Gemm& gemm) {
  const int multiprocessors =
      number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
  if (gemm.n <= 24 * multiprocessors) return launch_rows<T, 24>(call, gemm);
  return launch_rows<T, 32>(call, gemm);
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
         pairs(gemm.bias) && has_programmatic_launch(device) &&
         number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device) >= most_shared_bytes;
}

Status skinny_gemm(const Call& call, const Gemm& gemm) {
  if (gemm.dtype == DType::float16) return launch_type<Half>(call, gemm);
  if (gemm.dtype == DType::bfloat16) return launch_type<BFloat16>(call, gemm);
  return launch_type<float>(call, gemm);
}

}  // namespace cudarelu::cuda

// The matrix product of bfloat16 and float16 on compute capability 9.0: one block on each
// multiprocessor takes one tile of the result after the other. A thread of the first warpgroup has
// the copy engine bring panels of a and b into a ring of stages in shared memory; two warpgroups
// multiply them, apply the epilogue and have the copy engine write the results.
//
// The two share each tile (its rows), or take turns: while one ends its tile, the other keeps the
// tensor cores busy with the next. Blocks of a cluster, below each other, share the panels of b:
// each asks for a part, for all of them.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cuda/ptx>

#include "cuda/gemm/activation.cuh"
#include "cuda/gemm/wgmma.cuh"
#include "cuda/launch.cuh"

namespace cudarelu::cuda::hopper {

namespace ptx = ::cuda::ptx;

inline constexpr int computing_threads = 256;

/// How a tile of `rows` x `columns` is computed.
template <int rows_, int columns_, int stages_, int cluster_, bool take_turns_, int slots_ = 2,
          int blocks_ = 1>
struct Plan {
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int depth = 64;  // of a stage
  static constexpr int stages = stages_;
  static constexpr int cluster = cluster_;
  static constexpr bool take_turns = take_turns_;
  static constexpr int blocks = blocks_;  // on a multiprocessor

  // Only a warpgroup can give registers to others: with one block, one of its warps fetches.
  static constexpr bool moves_registers = blocks == 1;
  static constexpr int threads = computing_threads + (moves_registers ? 128 : 32);

  static constexpr int group_rows = take_turns ? rows : rows / 2;  // of a warpgroup
  static constexpr int blocks_of_rows = group_rows / 64;           // for one instruction each
  static constexpr int parts_of_columns = columns / 64;
  static constexpr int parts = blocks_of_rows * parts_of_columns;
  static constexpr int a_bytes = rows * depth * 2;
  static constexpr int b_bytes = columns * depth * 2;
  static constexpr int stage_bytes = a_bytes + b_bytes;
  static constexpr int slots = slots_;  // of results on their way out, for each warp
  static constexpr int slot_bytes = 16 * wgmma::line_bytes;  // 16 rows of 64 columns
  static constexpr int header_bytes = 256;                   // barriers, behind all else
  static constexpr int shared_bytes = stages * stage_bytes + 8 * slots * slot_bytes + header_bytes;
  static_assert((shared_bytes + 1024) * blocks <= 228 * 1024);
};

/// Where the blocks' tiles lie: in groups of `group` rows of clusters' tiles, column after column,
/// so that what is computed at one time reads few rows and columns.
struct Raster {
  int cluster_rows;  // of tiles, `cluster` tiles high
  int columns;       // of tiles
  int group;
  int tiles;  // of clusters, in all of the batch
};

struct Place {
  int row;
  int column;
  int batch;
};

template <class P>
__device__ __forceinline__ Place place(const Raster& raster, int tile, int rank) {
  const int each = raster.cluster_rows * raster.columns;
  const int batch = tile / each;
  tile -= batch * each;
  const int full = raster.group * raster.columns;
  const int first = tile / full * raster.group;
  const int high = min(raster.group, raster.cluster_rows - first);
  tile -= first * raster.columns;
  const int column = tile / high;
  const int row = first + tile - column * high;
  return {(row * P::cluster + rank) * P::rows, column * P::columns, batch};
}

/// Where in the ring of stages, and whether it has been gone around an odd number of times.
template <int stages>
struct Position {
  int stage = 0;
  unsigned parity = 0;

  __device__ void advance(int by = 1) {
    stage += by;
    parity ^= static_cast<unsigned>(stage / stages) & 1;
    stage %= stages;
  }
};

/// Rows of an operand that the copy engine is asked for at a time, where `blocks` share the work.
template <bool depth_major, int rows, int blocks>
inline constexpr int box_rows = depth_major ? rows / blocks : wgmma::panel_columns;

struct Maps {
  CUtensorMap a, b, d, sum;
};

struct Epilogue {
  const void* bias;  // or nullptr
  int columns;       // of the result
  Activation activation;
  bool sum;
};

__device__ __forceinline__ void wait(std::uint64_t* barrier, unsigned parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

template <class T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return store<T>(low).bits | static_cast<unsigned>(store<T>(high).bits) << 16;
}

/// A kernel for operands as they lie in memory: `a_depth_major`, a as [m, k]; `b_depth_major`, b as
/// [n, k].
template <class T, bool a_depth_major, bool b_depth_major, class P>
class Kernel {
 public:
  __device__ Kernel(const Maps& maps, const Raster& raster, const Epilogue& epilogue, int steps)
      : maps_(maps), raster_(raster), epilogue_(epilogue), steps_(steps) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      constexpr unsigned readers = (P::take_turns ? 1 : 2) * P::cluster;
      for (int stage = 0; stage < P::stages; ++stage) {
        ptx::mbarrier_init(full(stage), 1);
        ptx::mbarrier_init(empty(stage), readers);
      }
      for (int group = 0; group < 2; ++group) ptx::mbarrier_init(turn(group), 1);
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    sync();
    let_next_kernel_start();
    if (threadIdx.x >= computing_threads) {
      if constexpr (P::moves_registers) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
      if (threadIdx.x == computing_threads) {
        wait_for_previous_kernel();
        fetch();
      }
      __syncwarp();
      if constexpr (P::cluster > 1) sync();  // others write to this block's memory
    } else {
      if constexpr (P::moves_registers) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
      wait_for_previous_kernel();
      compute(threadIdx.x / 128);
      __syncwarp();
      if constexpr (P::cluster > 1) sync();
    }
  }

 private:
  using Ring = Position<P::stages>;

  __device__ static void sync() {
    if constexpr (P::cluster > 1) {
      ptx::barrier_cluster_arrive();
      ptx::barrier_cluster_wait();
    } else {
      __syncthreads();
    }
  }

  __device__ static char* shared() {
    extern __shared__ __align__(1024) char memory[];
    return memory;
  }
  __device__ static char* a_panels(int stage) { return shared() + stage * P::stage_bytes; }
  __device__ static char* b_panels(int stage) { return a_panels(stage) + P::a_bytes; }
  __device__ static char* slot(int warp, int number) {
    return shared() + P::stages * P::stage_bytes + (warp * P::slots + number) * P::slot_bytes;
  }
  __device__ static std::uint64_t* barrier(int number) {
    return reinterpret_cast<std::uint64_t*>(shared() + P::shared_bytes - P::header_bytes) + number;
  }
  __device__ static std::uint64_t* full(int stage) { return barrier(stage); }
  __device__ static std::uint64_t* empty(int stage) { return barrier(P::stages + stage); }
  __device__ static std::uint64_t* turn(int group) { return barrier(2 * P::stages + group); }

  __device__ static int rank() { return P::cluster > 1 ? blockIdx.x % P::cluster : 0; }

  /// Calls f(tile) for every `every`th tile of this block.
  template <class F>
  __device__ void for_each_tile(int first, int every, const F& f) const {
    const int clusters = gridDim.x / P::cluster;
    for (int tile = blockIdx.x / P::cluster + first * clusters; tile < raster_.tiles;
         tile += every * clusters) {
      f(place<P>(raster_, tile, rank()));
    }
  }

  /// Asks for `rows` rows of an operand from `row` on, as deep as a stage: for all blocks of the
  /// cluster, of which each asks for a part, or for this one.
  template <bool depth_major, int rows, bool for_all>
  __device__ static void fetch(const CUtensorMap& map, char* to, int row, int depth, int batch,
                               std::uint64_t* barrier) {
    constexpr int box = box_rows < depth_major, rows, for_all ? P::cluster : 1 > ;
#pragma unroll
    for (int i = 0; i < rows / box; ++i) {
      if (for_all && i % P::cluster != rank()) continue;
      const int first = row + i * box;
      const std::int32_t at[3] = {depth_major ? depth : first, depth_major ? first : depth, batch};
      char* const panel = to + i * box * wgmma::line_bytes;
      if constexpr (for_all) {
        constexpr std::uint16_t all = (1 << P::cluster) - 1;
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, panel, &map, at, barrier,
                                  all);
      } else {
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, panel, &map, at, barrier);
      }
    }
  }

  /// Asks for the panels of all tiles, in one thread.
  __device__ void fetch() const {
    Ring ring;
    for_each_tile(0, 1, [&](const Place& tile) {
      for (int step = 0; step < steps_; ++step, ring.advance()) {
        wait(empty(ring.stage), ring.parity ^ 1);
        std::uint64_t* const barrier = full(ring.stage);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                       P::stage_bytes);
        fetch<a_depth_major, P::rows, false>(maps_.a, a_panels(ring.stage), tile.row,
                                             step * P::depth, tile.batch, barrier);
        fetch<b_depth_major, P::columns, (P::cluster > 1)>(
            maps_.b, b_panels(ring.stage), tile.column, step * P::depth, tile.batch, barrier);
      }
    });
  }

  /// Gives a stage back to those who fill it. The multiplications have been waited for, and nothing
  /// else is to be seen by others: a release would wait for the writes of results, in each step.
  __device__ static void release(int stage) {
    const unsigned block = threadIdx.x % 128;
    if (block >= P::cluster) return;
    const auto own = static_cast<unsigned>(__cvta_generic_to_shared(empty(stage)));
    asm volatile(
        "{.reg .b32 other; mapa.shared::cluster.u32 other, %0, %1; "
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [other];}" ::"r"(own),
        "r"(block)
        : "memory");
  }

  using Part = float[32];  // what a thread has of 64 rows of 64 columns
  using Sums = Part[P::parts];

  /// Multiplies, in a warpgroup.
  __device__ void compute(int group) const {
    constexpr bool take_turns = P::take_turns;
    Ring ring;
    unsigned turn_parity = 0;
    int slot = 0;
    if (take_turns && group == 1) {
      pass_turn(group);
      ring.advance(steps_);
    }
    const int first_row = take_turns ? 0 : group * P::group_rows;
    for_each_tile(take_turns ? group : 0, take_turns ? 2 : 1, [&](const Place& tile) {
      if constexpr (take_turns) {
        wait(turn(group), turn_parity);
        turn_parity ^= 1;
      }
      Sums sums;
      int last = 0;
      for (int step = 0; step < steps_; ++step, ring.advance()) {
        wait(full(ring.stage), ring.parity);
        multiply(sums, ring.stage, first_row, step);
        if (step > 0) {
          wgmma::wait<1>();
          release(last);
        }
        last = ring.stage;
      }
      if constexpr (take_turns) pass_turn(group);
      const unsigned bias = bias_of(tile.column);
      wgmma::wait<0>();
      release(last);
      if constexpr (take_turns) ring.advance(steps_);
      finish(sums, bias, tile, first_row, slot);
    });
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }

  __device__ static void pass_turn(int group) {
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(turn(1 - group));
  }

  __device__ static void multiply(Sums& sums, int stage, int first_row, int step) {
    // 64 rows are a panel either way
    const std::uint64_t a = wgmma::descriptor(a_panels(stage) + first_row * wgmma::line_bytes);
    const std::uint64_t b = wgmma::descriptor(b_panels(stage));
    wgmma::fence();
#pragma unroll
    for (int i = 0; i < P::depth / 16; ++i) {
#pragma unroll
      for (int block = 0; block < P::blocks_of_rows; ++block) {
        wgmma::multiply<T, P::columns, a_depth_major, b_depth_major>(
            reinterpret_cast<float (&)[P::columns / 2]>(sums[block * P::parts_of_columns]),
            a + i * wgmma::depth_step<a_depth_major> + block * (wgmma::panel_bytes / 16),
            b + i * wgmma::depth_step<b_depth_major>, step > 0 || i > 0);
      }
    }
    wgmma::commit();
  }

  /// The epilogue of a warpgroup's rows of a tile. A loop that moves the registers costs less than
  /// the instructions of all parts, which no cache would hold.
  __device__ void finish(Sums& sums, unsigned bias, const Place& tile, int first_row,
                         int& slot) const {
    int row = tile.row + first_row + threadIdx.x / 32 % 4 * 16;
    int column = 0;  // of the tile
#pragma unroll 1
    for (int part = 0; part < P::parts; ++part) {
      const int at = tile.column + column;
      column += 64;
      const int next_row = column < P::columns ? row : row + 64;
      if (column == P::columns) column = 0;
      if (epilogue_.bias != nullptr) add_bias(sums[0], bias);
      bias = bias_of(tile.column + column);
      if (epilogue_.sum) write(sums[0], maps_.sum, row, at, tile.batch, slot);
      activate(sums[0], epilogue_.activation);
      write(sums[0], maps_.d, row, at, tile.batch, slot);
      row = next_row;
#pragma unroll
      for (int i = 1; i < P::parts; ++i) {
#pragma unroll
        for (int j = 0; j < 32; ++j) sums[i - 1][j] = sums[i][j];
      }
    }
  }

  /// Two elements of the bias, for columns 2 lane and 2 lane + 1 from `column` on.
  __device__ unsigned bias_of(int column) const {
    column += static_cast<int>(threadIdx.x % 32) * 2;
    if (epilogue_.bias == nullptr || column >= epilogue_.columns) return 0;
    return __ldg(reinterpret_cast<const unsigned*>(static_cast<const T*>(epilogue_.bias) + column));
  }

  __device__ static void add_bias(Part& values, unsigned bias) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const unsigned both = __shfl_sync(~0u, bias, j * 4 + static_cast<int>(threadIdx.x % 4));
      const float low = load(T{static_cast<std::uint16_t>(both)});
      const float high = load(T{static_cast<std::uint16_t>(both >> 16)});
      values[4 * j] += low;
      values[4 * j + 1] += high;
      values[4 * j + 2] += low;
      values[4 * j + 3] += high;
    }
  }

  /// Puts 16 rows of 64 columns, which a warp holds, into its next slot, and has them written.
  __device__ static void write(const Part& values, const CUtensorMap& map, int row, int column,
                               int batch, int& number) {
    const int lane = threadIdx.x % 32;
    char* const to = slot(threadIdx.x / 32, number);
    number = (number + 1) % P::slots;
    if (lane == 0) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<P::slots - 1>());
    __syncwarp();
    const int line = lane % 16;
    const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to)) + line * wgmma::line_bytes;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const int vector = j + lane / 16;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       at + ((vector ^ (line % 8)) * 16)),
                   "r"(pack<T>(values[4 * j], values[4 * j + 1])),
                   "r"(pack<T>(values[4 * j + 2], values[4 * j + 3])),
                   "r"(pack<T>(values[4 * j + 4], values[4 * j + 5])),
                   "r"(pack<T>(values[4 * j + 6], values[4 * j + 7]))
                   : "memory");
    }
    ptx::fence_proxy_async(ptx::space_shared);
    __syncwarp();
    if (lane == 0) {
      const std::int32_t place[3] = {column, row, batch};
      ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, place, to);
      ptx::cp_async_bulk_commit_group();
    }
  }

  const Maps& maps_;
  const Raster& raster_;
  const Epilogue& epilogue_;
  const int steps_;
};

template <class T, bool a_depth_major, bool b_depth_major, class P>
__global__ void __launch_bounds__(P::threads, P::blocks)
    multiply(const __grid_constant__ Maps maps, const __grid_constant__ Raster raster,
             const __grid_constant__ Epilogue epilogue, int steps) {
  Kernel<T, a_depth_major, b_depth_major, P>(maps, raster, epilogue, steps).run();
}

/// Describes a dense [batch, rows, columns] of two-byte elements to the copy engine, in boxes of
/// `box` rows of 64 columns.
inline CUresult describe(CUtensorMap& map, DType dtype, const void* data, std::int64_t batch,
                         std::int64_t rows, std::int64_t columns, int box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  if (encode == nullptr) return CUDA_ERROR_NOT_FOUND;
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const std::array sizes{size(columns), size(rows), size(batch)};
  const std::array strides{size(columns * 2), size(rows * columns * 2)};
  const std::array<cuuint32_t, 3> boxes{wgmma::panel_columns, static_cast<cuuint32_t>(box), 1};
  const std::array<cuuint32_t, 3> steps{1, 1, 1};
  return encode(
      &map,
      dtype == DType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      3, const_cast<void*>(data), sizes.data(), strides.data(), boxes.data(), steps.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/// Puts a product on the call's stream, with `group` rows of clusters' tiles in a group.
template <class T, bool a_depth_major, bool b_depth_major, class P>
Status start(const Call& call, const Gemm& gemm, int group) {
  constexpr auto kernel = multiply<T, a_depth_major, b_depth_major, P>;
  const auto ceil = [](std::int64_t n, std::int64_t size) {
    return static_cast<int>((n + size - 1) / size);
  };
  static DeviceNumbers<> known;
  int clusters = 0;  // at a time
  const cudaError_t error = known.get(call.execution.device_index, 0, clusters, [&](int& number) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::shared_bytes);
    if (error != cudaSuccess) return error;
    const Grid one{P::cluster, P::threads, P::shared_bytes, P::cluster};
    return with_configuration(call, one, [&](const cudaLaunchConfig_t& config) {
      return cudaOccupancyMaxActiveClusters(&number, kernel, &config);
    });
  });
  if (Status status = check(call, error); !status.ok()) return status;

  Maps maps;
  const auto describe_operand = [&](CUtensorMap& map, const void* data, std::int64_t rows,
                                    bool depth_major, int box) {
    return describe(map, gemm.dtype, data, gemm.batch, depth_major ? rows : gemm.k,
                    depth_major ? gemm.k : rows, box);
  };
  const auto describe_result = [&](CUtensorMap& map, const void* data) {
    return describe(map, gemm.dtype, data, gemm.batch, gemm.m, gemm.n, 16);
  };
  const std::array results{
      describe_operand(maps.a, gemm.a, gemm.m, a_depth_major, box_rows<a_depth_major, P::rows, 1>),
      describe_operand(maps.b, gemm.b, gemm.n, b_depth_major,
                       box_rows<b_depth_major, P::columns, P::cluster>),
      describe_result(maps.d, gemm.d),
      gemm.sum == nullptr ? CUDA_SUCCESS : describe_result(maps.sum, gemm.sum),
  };
  for (const CUresult result : results) {
    if (result == CUDA_SUCCESS) continue;
    return {Status::Code::device_failure, std::string(call.op.name) +
                                              ": CUDA: cuTensorMapEncodeTiled: error " +
                                              std::to_string(result)};
  }
  const int cluster_rows = ceil(gemm.m, std::int64_t{P::rows} * P::cluster);
  const int columns = ceil(gemm.n, P::columns);
  const int tiles = static_cast<int>(gemm.batch) * cluster_rows * columns;
  return launch(call, kernel,
                {static_cast<unsigned>(std::min(clusters, tiles) * P::cluster), P::threads,
                 P::shared_bytes, P::cluster},
                maps, {cluster_rows, columns, group, tiles},
                {gemm.bias, static_cast<int>(gemm.n), gemm.activation, gemm.sum != nullptr},
                ceil(gemm.k, P::depth));
}

}  // namespace cudarelu::cuda::hopper

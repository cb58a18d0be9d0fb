// The matrix product of bfloat16 and float16 on compute capability 9.0. One block on each
// multiprocessor computes one tile of the result after the other. One thread makes the copy engine
// bring panels of a and b to a ring of stages in shared memory. Two warpgroups multiply them, apply
// the epilogue and make the copy engine write the results.
//
// Another matrix, which the results are combined with, passes through the slots of shared memory
// that the results leave through: a slot is filled, and the results replace what they have read.
//
// The warpgroups divide the rows of each tile, or alternate (ping-pong): while one finishes its
// tile, the other keeps the tensor cores busy with the next. Clusters that share panels were not
// faster.
#pragma once

#include <algorithm>
#include <array>

#include "cuda/gemm/tiles.cuh"
#include "cuda/tile/pipeline.cuh"
#include "cuda/tile/swizzled_matrix.cuh"
#include "cuda/tile/tensor_map.h"
#include "cuda/tile/wgmma.cuh"
#include "cudarelu/detail/cuda/launch.cuh"

namespace cudarelu::gpu::sm90 {

inline constexpr int computing_threads = 256;
inline constexpr int threads = computing_threads + 128;  // only warpgroups release registers

/// How a tile of `rows` x `columns` is computed.
template <int rows_, int columns_, int stages_, bool pingpong_>
struct Sm90Config {
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int depth = 64;  // of a stage
  static constexpr int stages = stages_;
  static constexpr bool pingpong = pingpong_;

  static constexpr int group_rows = pingpong ? rows : rows / 2;  // of a warpgroup
  static constexpr int blocks_of_rows = group_rows / 64;         // for one instruction each
  static constexpr int a_bytes = rows * depth * 2;
  static constexpr int b_bytes = columns * depth * 2;
  static constexpr int stage_bytes = a_bytes + b_bytes;
  static constexpr int slots = 2 * blocks_of_rows;  // of a warp, for results and the other matrix
  static constexpr int slot_bytes = 16 * wgmma::line_bytes;  // 16 rows of 64 columns
  static constexpr int header_bytes = 512;                   // for barriers, at the end
  static constexpr int shared_bytes =
      stages * stage_bytes + computing_threads / 32 * slots * slot_bytes + header_bytes;
  static_assert(shared_bytes <= 227 * 1024 &&
                (2 * stages + 2 + computing_threads / 32 * slots) * 8 <= header_bytes);
};

/// The tiles of a product, in the order of tile_at().
struct Raster {
  int rows;  // of tiles
  int columns;
  int tiles;  // in all of the batch
};

/// The first row and the first column of a tile.
struct TileOffset {
  int row;
  int column;
  int batch;
};

template <class P>
__device__ __forceinline__ TileOffset tile_offset(const Raster& raster, int number) {
  const Tile tile = tile_at(number, raster.rows, raster.columns);
  return {tile.row * P::rows, tile.column * P::columns, tile.matrix};
}

/// The rows of an operand in one request to the copy engine.
template <bool depth_major, int rows>
inline constexpr int box_rows = depth_major ? rows : wgmma::panel_columns;

struct Maps {
  CUtensorMap a, b, d, sum, other;
};

struct Epilogue {
  const void* bias;  // or nullptr
  int columns;       // of the result
  Activation activation;
  Combine combine;
  bool sum;
};

/// Whether the epilogue can write the sums, too: of linear layers with GELU, whose gradient needs
/// them. More would make all kernels larger.
constexpr bool can_write_sums(bool of_linear_layer, Activation activation, bool has_other) {
  return of_linear_layer && !has_other &&
         (activation == Activation::gelu_erf || activation == Activation::gelu_tanh);
}

/// Without the instruction in mma.cuh, with which the compiler schedules the epilogues differently.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return store<T>(low).bits | static_cast<unsigned>(store<T>(high).bits) << 16;
}

/// The kernel for a layout of the operands: `a_depth_major`: a is stored as [m, k];
/// `b_depth_major`: b is stored as [n, k]. Only with both, as linear layers have them, the epilogue
/// has an activation. `has_other`: it combines another matrix.
template <class T, bool a_depth_major, bool b_depth_major, bool has_other, class P>
class Kernel {
 public:
  __device__ Kernel(const Maps& maps, const Raster& raster, const Epilogue& epilogue, int steps)
      : maps_(maps), raster_(raster), epilogue_(epilogue), steps_(steps) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < P::stages; ++stage) {
        ptx::mbarrier_init(full(stage), 1);
        ptx::mbarrier_init(empty(stage), P::pingpong ? 1 : 2);
      }
      for (int group = 0; group < 2; ++group) ptx::mbarrier_init(order(group), 1);
      if constexpr (has_other) {
        for (int i = 0; i < computing_threads / 32 * P::slots; ++i) {
          ptx::mbarrier_init(filled(i / P::slots, i % P::slots), 1);
        }
      }
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    let_next_kernel_start();
    if (threadIdx.x >= computing_threads) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
      if (threadIdx.x == computing_threads) {
        wait_for_previous_kernel();
        fetch();
      }
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
      wait_for_previous_kernel();
      compute(warp_ / 4);
    }
  }

 private:
  static constexpr bool of_linear_layer = a_depth_major && b_depth_major;
  using Ring = PipelineState<P::stages>;

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
  __device__ static std::uint64_t* order(int group) { return barrier(2 * P::stages + group); }
  /// Of a slot of a warp that the copy engine fills.
  __device__ static std::uint64_t* filled(int warp, int number) {
    return barrier(2 * P::stages + 2 + warp * P::slots + number);
  }

  /// Calls f(tile, i) for the tiles of this block, i = 0, 1, ...
  template <class F>
  __device__ void for_each_tile(const F& f) const {
    int number = 0;
    for (int tile = blockIdx.x; tile < raster_.tiles; tile += gridDim.x, ++number) f(tile, number);
  }

  /// Requests `rows` rows of an operand from `row` on, with the depth of a stage.
  template <bool depth_major, int rows>
  __device__ static void fetch(const CUtensorMap& map, char* to, int row, int depth, int batch,
                               std::uint64_t* barrier) {
    constexpr int box = box_rows<depth_major, rows>;
#pragma unroll
    for (int i = 0; i < rows; i += box) {
      const std::int32_t at[3] = {depth_major ? depth : row + i, depth_major ? row + i : depth,
                                  batch};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to + i * wgmma::line_bytes,
                                &map, at, barrier);
    }
  }

  /// Requests the panels of all tiles, in one thread.
  __device__ void fetch() const {
    Ring ring;
    for_each_tile([&](int tile, int) {
      const TileOffset offset = tile_offset<P>(raster_, tile);
      for (int step = 0; step < steps_; ++step, ring.advance()) {
        wait(empty(ring.stage), ring.parity ^ 1);
        std::uint64_t* const barrier = full(ring.stage);
        expect(barrier, P::stage_bytes);
        fetch<a_depth_major, P::rows>(maps_.a, a_panels(ring.stage), offset.row, step * P::depth,
                                      offset.batch, barrier);
        fetch<b_depth_major, P::columns>(maps_.b, b_panels(ring.stage), offset.column,
                                         step * P::depth, offset.batch, barrier);
      }
    });
  }

  using Sums = float[P::blocks_of_rows][P::columns / 2];
  using Part = float[32];                  // of Sums, for 64 columns
  using Bias = unsigned[P::columns / 64];  // for the columns of a tile, two per lane

  /// Multiplies and writes, in a warpgroup.
  __device__ void compute(int group) const {
    Ring ring;
    unsigned order_parity = 0;
    // If the warpgroups share a tile, one runs ahead in its last stages: while it finishes its
    // part, the other has the tensor cores. With fewer steps, it could be two tiles ahead.
    const bool staggered = !P::pingpong && steps_ >= P::stages;
    if (P::pingpong && group == 1) ring.advance(steps_);
    int slot = 0;
    unsigned slot_parity = 0;
    for_each_tile([&](int tile, int number) {
      if (P::pingpong && number % 2 != group) return;
      const int first_row = P::pingpong ? 0 : group * P::group_rows;
      TileOffset offset;
      if constexpr (has_other) {
        offset = tile_offset<P>(raster_, tile);
        begin_others(offset, first_row);
      }
      if constexpr (P::pingpong) {
        if (number > 0) {
          wait(order(group), order_parity);
          order_parity ^= 1;
        }
      }
      Sums sums;
      int last = ring.stage;
      wait(full(last), ring.parity);
      multiply<false>(sums, last, first_row);
      ring.advance();
      // Divisions, beside the tensor cores.
      if constexpr (!has_other) offset = tile_offset<P>(raster_, tile);
      for (int step = 1; step < steps_; ++step, ring.advance()) {
        wait(full(ring.stage), ring.parity);
        if (staggered && group == 1 && step == steps_ - P::stages + 1) wait(order(1), number % 2);
        multiply<true>(sums, ring.stage, first_row);
        wgmma::wait<1>();
        release(empty(last));
        last = ring.stage;
      }
      if ((P::pingpong || (staggered && group == 0)) && threadIdx.x % 128 == 0) {
        ptx::mbarrier_arrive(order(1 - group));
      }
      Bias bias;
#pragma unroll
      for (int part = 0; part < P::columns / 64; ++part) {
        bias[part] = bias_of(offset.column + part * 64);
      }
      wgmma::wait<0>();
      release(empty(last));
      if (P::pingpong) ring.advance(steps_);
      if constexpr (!of_linear_layer) {
        finish<Activation::none>(sums, bias, offset, first_row, slot, slot_parity);
        return;
      }
      switch (epilogue_.activation) {
        case Activation::none:
          finish<Activation::none>(sums, bias, offset, first_row, slot, slot_parity);
          break;
        case Activation::relu:
          finish<Activation::relu>(sums, bias, offset, first_row, slot, slot_parity);
          break;
        case Activation::gelu_erf:
          finish<Activation::gelu_erf>(sums, bias, offset, first_row, slot, slot_parity);
          break;
        case Activation::gelu_tanh:
          finish<Activation::gelu_tanh>(sums, bias, offset, first_row, slot, slot_parity);
          break;
        case Activation::silu:
          finish<Activation::silu>(sums, bias, offset, first_row, slot, slot_parity);
          break;
      }
    });
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }

  /// Adds the products of a stage to the sums, or sets the sums. That is not a run-time flag, so
  /// that the compiler knows which sums are dead and reuses their registers in the epilogue before.
  template <bool add>
  __device__ static void multiply(Sums& sums, int stage, int first_row) {
    // In both layouts 64 rows are a panel.
    const std::uint64_t a = wgmma::descriptor(a_panels(stage) + first_row * wgmma::line_bytes);
    const std::uint64_t b = wgmma::descriptor(b_panels(stage));
    wgmma::fence();
#pragma unroll
    for (int i = 0; i < P::depth / 16; ++i) {
#pragma unroll
      for (int block = 0; block < P::blocks_of_rows; ++block) {
        wgmma::multiply<T, P::columns, a_depth_major, b_depth_major>(
            sums[block],
            a + i * wgmma::depth_step<a_depth_major> + block * (wgmma::panel_bytes / 16),
            b + i * wgmma::depth_step<b_depth_major>, add || i > 0);
      }
    }
    wgmma::commit();
  }

  /// The epilogue of a warpgroup's part of a tile, 64 columns at a time.
  template <Activation activation>
  __device__ void finish(Sums& sums, const Bias& bias, const TileOffset& tile, int first_row,
                         int& slot, unsigned& slot_parity) const {
    // Only one block: dense multiply-adds of the exact GELU slow the tensor cores, and the other
    // matrix takes registers.
    constexpr bool is_large = has_other || activation == Activation::gelu_erf;
    constexpr int at_once = is_large ? 1 : P::blocks_of_rows;
#pragma unroll
    for (int part = 0; part < P::columns / 64; ++part) {
      if (epilogue_.bias != nullptr) {
#pragma unroll
        for (int block = 0; block < P::blocks_of_rows; ++block) {
          add_bias(part_of(sums, block, part), bias[part]);
        }
      }
#pragma unroll
      for (int block = 0; block < P::blocks_of_rows; block += at_once) {
        const int unit = part * P::blocks_of_rows + block;
        const TileOffset offset = offset_of_unit(unit, tile, first_row);
        if constexpr (can_write_sums(of_linear_layer, activation, has_other)) {
          if (epilogue_.sum) {
            write<Activation::none, at_once>(sums, block, part, maps_.sum, offset, slot);
          }
        }
        if constexpr (has_other) {
          write_combined<activation>(sums, block, part, tile, first_row, slot_parity);
        } else {
          write<activation, at_once>(sums, block, part, maps_.d, offset, slot);
        }
      }
    }
  }

  __device__ static Part& part_of(Sums& sums, int block, int part) {
    return reinterpret_cast<Part&>(sums[block][part * 32]);
  }

  /// The bias of 64 columns, two elements for each lane of a warp.
  __device__ unsigned bias_of(int column) const {
    const int first = column + static_cast<int>(threadIdx.x) % 32 * 2;
    if (epilogue_.bias == nullptr || first >= epilogue_.columns) return 0;
    return __ldg(reinterpret_cast<const unsigned*>(static_cast<const T*>(epilogue_.bias) + first));
  }

  __device__ static void add_bias(Part& values, unsigned bias) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const unsigned both = __shfl_sync(~0u, bias, j * 4 + static_cast<int>(threadIdx.x) % 4);
      const float low = load(T{static_cast<std::uint16_t>(both)});
      const float high = load(T{static_cast<std::uint16_t>(both >> 16)});
      values[4 * j] += low;
      values[4 * j + 1] += high;
      values[4 * j + 2] += low;
      values[4 * j + 3] += high;
    }
  }

  /// The part of a tile for one slot of a warp: 16 rows of 64 columns.
  __device__ TileOffset offset_of_unit(int unit, const TileOffset& tile, int first_row) const {
    return {tile.row + first_row + warp_ % 4 * 16 + unit % P::blocks_of_rows * 64,
            tile.column + unit / P::blocks_of_rows * 64, tile.batch};
  }

  /// Writes 16 rows of 64 columns of each of `blocks` blocks of a warp, through its next slots.
  template <Activation activation, int blocks>
  __device__ void write(Sums& sums, int first, int part, const CUtensorMap& map,
                        const TileOffset& offset, int& next) const {
    char* const to = slot(warp_, next);
    next = (next + blocks) % P::slots;
    if (leads()) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<P::slots / blocks - 1>());
    __syncwarp();
    put<activation, blocks>(sums, first, part, to, [](float value, int) { return value; });
    send<blocks>(map, offset, to);
  }

  __device__ static bool leads() { return threadIdx.x % 32 == 0; }

  /// Writes the activations of the sums to slots; finish(value, its number in the part) follows.
  template <Activation activation, int blocks, class Finish>
  __device__ void put(Sums& sums, int first, int part, char* to, const Finish& finish) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int line = lane % 16;
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to)) +
                        swizzled<wgmma::line_bytes>(line, lane / 16);
#pragma unroll
    for (int block = 0; block < blocks; ++block) {
#pragma unroll
      for (int i = 0; i < 32; i += 8) {
        float* const values = part_of(sums, first + block, part) + i;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          values[j] = finish(activated_fast<activation, T>(values[j]), i + j);
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         (at ^ (i * 4)) + block * P::slot_bytes),
                     "r"(pack<T>(values[0], values[1])), "r"(pack<T>(values[2], values[3])),
                     "r"(pack<T>(values[4], values[5])), "r"(pack<T>(values[6], values[7]))
                     : "memory");
      }
    }
  }

  /// Makes the copy engine write slots to the result.
  template <int blocks>
  __device__ void send(const CUtensorMap& map, const TileOffset& offset, const char* from) const {
    ptx::fence_proxy_async(ptx::space_shared);
    __syncwarp();
    if (!leads()) return;
#pragma unroll
    for (int block = 0; block < blocks; ++block) {
      const std::int32_t corner[3] = {offset.column, offset.row + block * 64, offset.batch};
      ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, corner,
                                from + block * P::slot_bytes);
    }
    ptx::cp_async_bulk_commit_group();
  }

  // The other matrix: each slot is filled with the elements for a unit, which the results replace.

  static constexpr int units = P::columns / 64 * P::blocks_of_rows;  // of a tile, for a warp

  __device__ static constexpr int slot_of(int unit) { return unit % P::slots; }

  /// Requests the elements for the first units of a tile, while its products are computed.
  __device__ void begin_others(const TileOffset& tile, int first_row) const {
    if (!leads()) return;
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    for (int unit = 0; unit < units; ++unit) {
      if (unit < P::slots) {
        request_others(unit, tile, first_row);
      } else {  // brings them to the L2 cache
        const TileOffset offset = offset_of_unit(unit, tile, first_row);
        asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(
                         &maps_.other),
                     "r"(offset.column), "r"(offset.row), "r"(offset.batch)
                     : "memory");
      }
    }
  }

  __device__ void request_others(int unit, const TileOffset& tile, int first_row) const {
    const TileOffset offset = offset_of_unit(unit, tile, first_row);
    std::uint64_t* const barrier = filled(warp_, slot_of(unit));
    expect(barrier, P::slot_bytes);
    const std::int32_t at[3] = {offset.column, offset.row, offset.batch};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, slot(warp_, slot_of(unit)),
                              &maps_.other, at, barrier);
  }

  using Others = unsigned[16];  // pairs of neighbours in a row, in the order of Part

  __device__ static void read_others(Others& others, const char* from) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int line = lane / 4;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int down = i % 2 * 8;
      const int chunk = i / 2;  // of 8 columns
      others[i] = *reinterpret_cast<const unsigned*>(from + (line + down) * wgmma::line_bytes +
                                                     (chunk ^ line) * 16 + lane % 4 * 4);
    }
  }

  /// Combines the results of a unit with the other matrix, and writes them.
  template <Activation activation>
  __device__ void write_combined(Sums& sums, int block, int part, const TileOffset& tile,
                                 int first_row, unsigned& parities) const {
    const int unit = part * P::blocks_of_rows + block;
    const int number = slot_of(unit);
    char* const to = slot(warp_, number);
    wait(filled(warp_, number), parities >> number & 1);
    parities ^= 1U << number;
    Others others;
    read_others(others, to);
    __syncwarp();
    put<activation, 1>(sums, block, part, to, [&](float value, int i) {
      const auto bits = static_cast<std::uint16_t>(others[i / 2] >> i % 2 * 16);
      return combined(epilogue_.combine, value, load(T{bits}));
    });
    send<1>(maps_.d, offset_of_unit(unit, tile, first_row), to);
    if (!leads()) return;
    // Of many slots, that of the unit before is free sooner.
    constexpr int late = P::slots > 2 ? 1 : 0;
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<late>());
    const int next = unit + P::slots - late;
    if (next < units && next >= P::slots) request_others(next, tile, first_row);
  }

  const Maps& maps_;
  const Raster& raster_;
  const Epilogue& epilogue_;
  const int steps_;
  const int warp_ = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);  // uniform
};

template <class T, bool a_depth_major, bool b_depth_major, bool has_other, class P>
__global__ void __launch_bounds__(threads, 1)
    multiply(const __grid_constant__ Maps maps, const __grid_constant__ Raster raster,
             const __grid_constant__ Epilogue epilogue, int steps) {
  Kernel<T, a_depth_major, b_depth_major, has_other, P>(maps, raster, epilogue, steps).run();
}

inline int ceil(std::int64_t n, std::int64_t size) {
  return static_cast<int>((n + size - 1) / size);
}

/// Enqueues a product on the call's stream, for a device with that many multiprocessors.
template <class T, bool a_depth_major, bool b_depth_major, bool has_other, class P>
Status start(const Call& call, const Gemm& gemm, int multiprocessors) {
  constexpr auto kernel = multiply<T, a_depth_major, b_depth_major, has_other, P>;
  if (Status status = allow_shared_memory<kernel>(call, P::shared_bytes); !status.ok()) {
    return status;
  }

  Maps maps{};
  const auto describe_operand = [&](CUtensorMap& map, const void* data, std::int64_t rows,
                                    bool depth_major, int box) {
    return describe(call, map, gemm.dtype, data, gemm.batch, depth_major ? rows : gemm.k,
                    depth_major ? gemm.k : rows, box);
  };
  const auto describe_result = [&](CUtensorMap& map, const void* data) {
    if (data == nullptr) return Status();
    return describe(call, map, gemm.dtype, data, gemm.batch, gemm.m, gemm.n, 16);
  };
  std::array results{
      describe_operand(maps.a, gemm.a, gemm.m, a_depth_major, box_rows<a_depth_major, P::rows>),
      describe_operand(maps.b, gemm.b, gemm.n, b_depth_major, box_rows<b_depth_major, P::columns>),
      describe_result(maps.d, gemm.d),
      describe_result(maps.sum, gemm.sum),
      describe_result(maps.other, gemm.other),
  };
  for (Status& result : results) {
    if (!result.ok()) return std::move(result);
  }
  const int rows = ceil(gemm.m, P::rows);
  const int columns = ceil(gemm.n, P::columns);
  const int tiles = static_cast<int>(gemm.batch) * rows * columns;
  return launch(
      call, kernel,
      {static_cast<unsigned>(std::min(multiprocessors, tiles)), threads, P::shared_bytes}, maps,
      {rows, columns, tiles},
      {gemm.bias, static_cast<int>(gemm.n), gemm.activation, gemm.combine, gemm.sum != nullptr},
      ceil(gemm.k, P::depth));
}

}  // namespace cudarelu::gpu::sm90

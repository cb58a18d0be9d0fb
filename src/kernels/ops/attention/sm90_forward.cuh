// Attention of float16 and bfloat16 on compute capability 9.0, by the method of FlashAttention-3.
//
// A block computes one tile of rows of y after the other: of one head, with 64 queries for each of
// its computing warpgroups. One thread makes the copy engine bring the queries, and rings of tiles
// of keys and of values. A warpgroup holds its scores, weights and results in registers. It starts
// the product of its queries and the next keys, and that of the last weights and values, before it
// converts scores into weights, so that the tensor cores schedule meanwhile. The warpgroups start
// products by turns, so that they do not all wait for the tensor cores at the same time.
//
// The largest score of a row is found only for its first tile of keys. The weights of later tiles
// are relative to that one too, unless their sum shows that one is too large: then the row is
// scaled to the largest score so far. That is rare, and finding it each time costs a quarter of the
// instructions for a score.
#pragma once

#include "ops/attention/cuda.cuh"
#include "ops/attention/sm90_shared.cuh"

namespace cudarelu::ops::attention::sm90 {

/// How a tile is computed. The sizes of q, k and v, here multiples of 64, are filled up with zeros.
template <int width_, int value_width_, int keys_, int groups_, int q_stages_, int stages_>
struct ForwardConfig {
  static constexpr int width = width_;
  static constexpr int value_width = value_width_;
  static constexpr int keys = keys_;          // of a stage
  static constexpr int groups = groups_;      // warpgroups that compute
  static constexpr int q_stages = q_stages_;  // of the ring of queries
  static constexpr int stages = stages_;      // of the ring of keys, and of that of values

  static constexpr int rows = groups * group_rows;
  static constexpr int computing_threads = groups * 128;
  static constexpr int threads = computing_threads + 128;  // only warpgroups release registers
  static constexpr int q_bytes = rows * width * 2;
  static constexpr int k_bytes = keys * width * 2;
  static constexpr int v_bytes = keys * value_width * 2;
  static constexpr int header_bytes = 256;  // for barriers and tiles, at the end
  static constexpr int shared_bytes =
      q_stages * q_bytes + stages * (k_bytes + v_bytes) + header_bytes;
  static_assert(shared_bytes <= 227 * 1024 && 32 * q_stages + 32 * stages <= header_bytes);
  static_assert(keys % 16 == 0);
};

/// The rows of y as tiles, in the order of tile_at().
struct Schedule {
  int row_tiles;  // of a head
  int heads;      // of q, in all of the batch
  Divisor heads_of_item;
  int heads_at_once;  // whose keys and values the cache holds
  int tiles;
  int queries;
  int keys;
  int value_width;
  int group;    // heads of q that share keys and values
  float scale;  // of scores, times log2(e)
  bool is_causal;
  int* next;  // the number of the next tile to start, less those that start first; or null
};

struct Tile {
  int head;
  int row;    // the first
  int steps;  // tiles of keys; 0: there are no more tiles
  int unused;
};

/// Long tiles come first, so that blocks end at the same time. Consecutive numbers are for the same
/// rows of some heads, then for the rows above.
template <class P>
__device__ __forceinline__ Tile tile_at(const Schedule& schedule, int number) {
  const auto [head, line] = HeadTile::of(schedule, number);
  const int row = (schedule.row_tiles - 1 - line) * P::rows;
  const int end = min(row + P::rows, schedule.queries);
  const int keys = schedule.is_causal ? min(schedule.keys, end) : schedule.keys;
  return {head, row, (keys + P::keys - 1) / P::keys, 0};
}

struct Maps {
  CUtensorMap q, k, v;
};

template <class T, class P>
class Kernel {
 public:
  __device__ Kernel(const Maps& maps, const Schedule& schedule, const Params& params, const T* q,
                    const T* k, const T* v, T* y, float* lse)
      : maps_(maps), schedule_(schedule), params_(params), q_(q), k_(k), v_(v), y_(y), lse_(lse) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < P::q_stages; ++stage) {
        ptx::mbarrier_init(q_full(stage), 1);
        ptx::mbarrier_init(q_empty(stage), P::groups);
      }
      for (int stage = 0; stage < P::stages; ++stage) {
        ptx::mbarrier_init(k_full(stage), 1);
        ptx::mbarrier_init(v_full(stage), 1);
        ptx::mbarrier_init(k_empty(stage), P::groups);
        ptx::mbarrier_init(v_empty(stage), P::groups);
      }
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    gpu::let_next_kernel_start();
    if (threadIdx.x >= P::computing_threads) {
      if constexpr (P::groups == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
      if constexpr (P::groups == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
      if (threadIdx.x == P::computing_threads) {
        gpu::wait_for_previous_kernel();
        fetch();
      }
    } else {
      if constexpr (P::groups == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
      if constexpr (P::groups == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
      gpu::wait_for_previous_kernel();
      compute(warp_ / 4);
    }
  }

 private:
  using QueryRing = gpu::PipelineState<P::q_stages>;
  using Ring = gpu::PipelineState<P::stages>;
  using Scores = float[P::keys / 2];
  using Weights = unsigned[P::keys / 4];  // as the first operand of a product
  using Results = float[P::value_width / 2];

  __device__ static char* shared() {
    extern __shared__ __align__(1024) char memory[];
    return memory;
  }
  __device__ static char* q_panels(int stage) { return shared() + stage * P::q_bytes; }
  __device__ static char* k_panels(int stage) {
    return shared() + P::q_stages * P::q_bytes + stage * P::k_bytes;
  }
  __device__ static char* v_panels(int stage) { return k_panels(P::stages) + stage * P::v_bytes; }
  __device__ static char* header() { return shared() + P::shared_bytes - P::header_bytes; }
  /// The tile whose queries are in a stage.
  __device__ static Tile& tile_of(int stage) { return reinterpret_cast<Tile*>(header())[stage]; }
  __device__ static std::uint64_t* barrier(int number) {
    return reinterpret_cast<std::uint64_t*>(header() + P::q_stages * sizeof(Tile)) + number;
  }
  __device__ static std::uint64_t* q_full(int stage) { return barrier(stage); }
  __device__ static std::uint64_t* q_empty(int stage) { return barrier(P::q_stages + stage); }
  __device__ static std::uint64_t* stage_barrier(int kind, int stage) {
    return barrier(2 * P::q_stages + kind * P::stages + stage);
  }
  __device__ static std::uint64_t* k_full(int stage) { return stage_barrier(0, stage); }
  __device__ static std::uint64_t* k_empty(int stage) { return stage_barrier(1, stage); }
  __device__ static std::uint64_t* v_full(int stage) { return stage_barrier(2, stage); }
  __device__ static std::uint64_t* v_empty(int stage) { return stage_barrier(3, stage); }

  /// Requests all tiles, in one thread, in the order in which they are used.
  __device__ void fetch() const {
    QueryRing q_ring;
    Ring k_ring, v_ring;
    const auto fetch_queries = [&](int number) {
      const Tile tile = number < schedule_.tiles ? tile_at<P>(schedule_, number) : Tile{};
      wait(q_empty(q_ring.stage), q_ring.parity ^ 1);
      std::uint64_t* const full = q_full(q_ring.stage);
      tile_of(q_ring.stage) = tile;
      if (tile.steps == 0) {
        ptx::mbarrier_arrive(full);
      } else {
        expect(full, P::q_bytes);
        request<P::rows, P::width>(maps_.q, q_panels(q_ring.stage), tile.row, head_of(tile.head),
                                   full);
      }
      q_ring.advance();
    };
    const auto fetch_keys = [&](Head head, int step) {
      wait(k_empty(k_ring.stage), k_ring.parity ^ 1);
      std::uint64_t* const full = k_full(k_ring.stage);
      expect(full, P::k_bytes);
      request<P::keys, P::width>(maps_.k, k_panels(k_ring.stage), step * P::keys, head, full);
      k_ring.advance();
    };
    const auto fetch_values = [&](Head head, int step) {
      wait(v_empty(v_ring.stage), v_ring.parity ^ 1);
      std::uint64_t* const full = v_full(v_ring.stage);
      expect(full, P::v_bytes);
      request<P::keys, P::value_width>(maps_.v, v_panels(v_ring.stage), step * P::keys, head, full);
      v_ring.advance();
    };
    int number = static_cast<int>(blockIdx.x);
    int slot = 0;
    fetch_queries(number);
    while (tile_of(slot).steps > 0) {
      const Tile tile = tile_of(slot);
      slot = q_ring.stage;
      const Head head = head_of(tile.head);
      const Head kv{head.head / schedule_.group, head.item};
      fetch_keys(kv, tile.steps - 1);
      number = static_cast<int>(gridDim.x) +
               (schedule_.next == nullptr ? number : atomicAdd(schedule_.next, 1));
      if (P::q_stages > 1) fetch_queries(number);
      for (int step = tile.steps - 2; step >= 0; --step) {
        fetch_keys(kv, step);
        fetch_values(kv, step + 1);
      }
      fetch_values(kv, 0);
      if (P::q_stages == 1) fetch_queries(number);
    }
  }

  __device__ Head head_of(int head) const { return Head::of(head, schedule_.heads_of_item); }

  /// Waits until a warpgroup may start products.
  __device__ static void take_turn(int group) { gpu::wait_at<256>(1 + group); }
  __device__ static void pass_turn(int group) {
    const int next = group == P::groups - 1 ? 0 : group + 1;
    gpu::arrive_at<256>(1 + next);
  }

  /// Of the two rows of a thread: the scores are relative to `-shift`, in powers of two.
  struct Rows {
    float shift[2];  // infinity: no key was visible
    float total[2];  // of the weights in this thread
  };

  /// What a warpgroup holds between two steps.
  struct State {
    QueryRing q_ring;
    Ring k_ring, v_ring;
    Results results;
    Rows rows;
    Tile tile;
  };

  /// Computes the tiles of a warpgroup.
  __device__ void compute(int group) const {
    State state{};
    Weights weights, next;
    if (group == P::groups - 1) pass_turn(group);
    for (;;) {
      const Tile tile = wait_for_tile(state.q_ring);
      if (tile.steps == 0) break;
      int step = tile.steps - 1;
      // Two steps in a round swap the weights without copies.
      advance<true>(state, weights, next, group, tile, step--);
      copy(next, weights);
      if (step % 2 == 0) {
        advance<false>(state, weights, next, group, tile, step--);
        copy(next, weights);
      }
      while (step > 0) {
        advance<false>(state, weights, next, group, tile, step--);
        advance<false>(state, next, weights, group, tile, step--);
      }
      state.q_ring.advance();
      if constexpr (P::q_stages == 1) finish(state, weights, group);
    }
    if constexpr (P::q_stages > 1) finish(state, weights, group);
    if (group == 0) take_turn(group);
  }

  /// The same in all lanes, which the compiler sees.
  __device__ static Tile wait_for_tile(const QueryRing& ring) {
    wait(q_full(ring.stage), ring.parity);
    const Tile tile = tile_of(ring.stage);
    return {__shfl_sync(~0u, tile.head, 0), __shfl_sync(~0u, tile.row, 0),
            __shfl_sync(~0u, tile.steps, 0), 0};
  }

  /// Keeps the compiler from using `to` instead of `from`.
  __device__ __forceinline__ static void copy(const Weights& from, Weights& to) {
#pragma unroll
    for (int i = 0; i < P::keys / 4; ++i) {
      asm volatile("mov.b32 %0, %1;" : "=r"(to[i]) : "r"(from[i]));
    }
  }

  /// A step: the scores of a tile of keys, and the product of the weights of the step before and
  /// their values. Sets `next` to the weights of this step. With two stages of queries, the first
  /// step of a tile completes the tile before.
  template <bool first>
  __device__ __forceinline__ void advance(State& state, Weights& weights, Weights& next, int group,
                                          const Tile& tile, int step) const {
    Scores scores;
    constexpr bool may_add = !first || P::q_stages > 1;
    const bool adds = may_add && (!first || state.tile.steps > 0);
    wait(k_full(state.k_ring.stage), state.k_ring.parity);
    if constexpr (may_add) pin(weights);
    take_turn(group);
    wgmma::fence();
    multiply_keys(scores, group, state.q_ring.stage, state.k_ring.stage);
    if (adds) {
      wait(v_full(state.v_ring.stage), state.v_ring.parity);
      wgmma::fence();
      add_values(state.results, weights, state.v_ring.stage);
    } else {
      wgmma::wait<0>();
    }
    pass_turn(group);
    wgmma::wait<1>();
    pin(scores);
    release(k_empty(state.k_ring.stage));
    state.k_ring.advance();
    if (step == 0) release(q_empty(state.q_ring.stage));
    const int row = tile.row + group * group_rows;
    hide(scores, row, step * P::keys);
    const Rows last = state.rows;
    float factor[2];
    const bool rescale = weigh<first>(scores, next, state.rows, factor);
    if constexpr (first) keep_before(state.rows.total[0] + state.rows.total[1]);
    wgmma::wait<0>();
    pin(state.results);
    pin(next);
    if (adds) {
      release(v_empty(state.v_ring.stage));
      state.v_ring.advance();
    }
    if constexpr (first) {
      if (adds) write(state.results, last, state.tile, group);
#pragma unroll
      for (float& result : state.results) result = 0;
      state.tile = tile;
    } else if (rescale) {
      multiply_rows(state.results, factor);
    }
  }

  /// Completes a tile.
  __device__ __forceinline__ void finish(State& state, Weights& weights, int group) const {
    wait(v_full(state.v_ring.stage), state.v_ring.parity);
    pin(weights);
    wgmma::fence();
    add_values(state.results, weights, state.v_ring.stage);
    wgmma::wait<0>();
    pin(state.results);
    release(v_empty(state.v_ring.stage));
    state.v_ring.advance();
    write(state.results, state.rows, state.tile, group);
  }

  /// Starts the product of queries and keys.
  __device__ __forceinline__ static void multiply_keys(Scores& scores, int group, int q_stage,
                                                       int stage) {
    constexpr int line = wgmma::line_bytes / 16;
    const std::uint64_t a =
        wgmma::descriptor(q_panels(q_stage) + group * group_rows * wgmma::line_bytes);
    const std::uint64_t b = wgmma::descriptor(k_panels(stage));
#pragma unroll
    for (int i = 0; i < P::width / 16; ++i) {
      const int offset = i % 4 * static_cast<int>(wgmma::depth_step<true>);
      wgmma::multiply<T, P::keys, true, true>(scores, a + offset + i / 4 * (P::rows * line),
                                              b + offset + i / 4 * (P::keys * line), i > 0);
    }
    wgmma::commit();
  }

  /// Starts to add the product of weights and values.
  __device__ __forceinline__ static void add_values(Results& results, const Weights& weights,
                                                    int stage) {
    const std::uint64_t b = wgmma::descriptor(v_panels(stage), P::keys * wgmma::line_bytes);
#pragma unroll
    for (int i = 0; i < P::keys / 16; ++i) {
      wgmma::add_product<T, P::value_width>(results, &weights[4 * i],
                                            b + i * wgmma::depth_step<false>);
    }
    wgmma::commit();
  }

  /// Sets the scores of hidden keys to -infinity, in a tile of keys that begins at `first`.
  __device__ __forceinline__ void hide(Scores& scores, int row, int first) const {
    const int all_see = schedule_.is_causal ? min(schedule_.keys, row + 1) : schedule_.keys;
    if (first + P::keys <= all_see) return;
    const int lane = lane_of_thread();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = row + warp_ % 4 * 16 + lane / 4 + 8 * h;
      const int visible = schedule_.is_causal ? min(schedule_.keys, own + 1) : schedule_.keys;
      const int count = visible - first - lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < P::keys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (8 * j + i >= count) scores[4 * j + 2 * h + i] = low<float>;
        }
      }
    }
  }

  /// The largest score of each row.
  __device__ __forceinline__ static void find_largest(const Scores& scores, float (&largest)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = scores[2 * h];
#pragma unroll
      for (int j = 0; j < P::keys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) largest[h] = fmaxf(largest[h], scores[4 * j + 2 * h + i]);
      }
    }
  }

  /// Converts scores into weights relative to `-shift`, and adds those of a thread.
  __device__ __forceinline__ void power_and_pack(const Scores& scores, Weights& weights,
                                                 const float (&shift)[2], float (&sums)[2]) const {
#pragma unroll
    for (int i = 0; i < P::keys / 4; ++i) {
      const float by = shift[i % 2];
      const float a = power_of_two(fmaf(scores[2 * i], schedule_.scale, by));
      const float b = power_of_two(fmaf(scores[2 * i + 1], schedule_.scale, by));
      sums[i % 2] = i < 2 ? a + b : sums[i % 2] + a + b;
      weights[i] = pack<T>(a, b);
    }
  }

  /// Converts the scores of a tile of keys, the first one of a row or a later one, into weights.
  /// Returns whether the results so far must be multiplied by `factor`, except for the first.
  template <bool first>
  __device__ __forceinline__ bool weigh(const Scores& scores, Weights& weights, Rows& rows,
                                        float (&factor)[2]) const {
    constexpr float most = 32768;  // weights are float16
    float sums[2];
    bool raise[2] = {true, true};
    if constexpr (!first) {
      power_and_pack(scores, weights, rows.shift, sums);
      const unsigned above[2] = {__ballot_sync(~0u, !(sums[0] <= most)),
                                 __ballot_sync(~0u, !(sums[1] <= most))};
      if ((above[0] | above[1]) == 0) {
        rows.total[0] += sums[0];
        rows.total[1] += sums[1];
        return false;
      }
      const int lane = lane_of_thread();
      raise[0] = (above[0] >> (lane & 28) & 15) != 0;
      raise[1] = (above[1] >> (lane & 28) & 15) != 0;
    }
    float largest[2];
    find_largest(scores, largest);
    float used[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 1));
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 2));
      const float shift = -(largest[h] * schedule_.scale);
      if constexpr (first) {
        rows.shift[h] = shift;
        rows.total[h] = 0;
      } else {
        raise[h] &= largest[h] != low<float>;
        factor[h] = raise[h] ? power_of_two(shift - rows.shift[h]) : 1.0f;
        if (raise[h]) rows.shift[h] = shift;
      }
      used[h] = rows.shift[h] == -low<float> ? 0.0f : rows.shift[h];
    }
    power_and_pack(scores, weights, used, sums);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.total[h] = first ? sums[h] : fmaf(rows.total[h], factor[h], sums[h]);
    }
    return true;
  }

  /// Multiplies the two rows of a thread.
  __device__ __forceinline__ static void multiply_rows(Results& results, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < P::value_width / 2; ++i) results[i] *= factor[i / 2 % 2];
  }

  /// Divides the results by the totals and writes them, and the logarithms of the totals.
  __device__ __forceinline__ void write(Results& results, const Rows& rows, const Tile& tile,
                                        int group) const {
    const int lane = lane_of_thread();
    const int top = tile.row + group * group_rows + warp_ % 4 * 16;
    const std::int64_t first = static_cast<std::int64_t>(tile.head) * schedule_.queries + top;
    const Head head = head_of(tile.head);
    T* const results_of_head = y_ + params_.y.offset(head.item, head.head);
    std::uint64_t wrong = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = rows.total[h];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const float factor = total == 0 ? 0.0f : __fdividef(1.0f, total);
      bool is_finite = true;
#pragma unroll
      for (int j = 0; j < P::value_width / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& result = results[4 * j + 2 * h + i];
          result *= factor;
          is_finite &= fabsf(result) < -low<float>;
        }
      }
      const int row = lane / 4 + 8 * h;
      const bool inside = top + row < schedule_.queries;
      wrong |= static_cast<std::uint64_t>(__ballot_sync(~0u, inside && !is_finite)) << (32 * h);
      if (inside && lse_ != nullptr && lane % 4 == 0) {
        lse_[first + row] = (__log2f(total) - rows.shift[h]) * ln_2;
      }
      T* const to = results_of_head + (top + row) * params_.y.row;
      write_results(results, h, lane, inside, to, schedule_.value_width);
    }
    // Hidden values that are not finite, times 0, are NaN: such rows are computed again.
    while (wrong != 0) {
      __syncwarp();
      const int row = (__ffsll(static_cast<long long>(wrong)) - 1) / 4;
      wrong &= ~(std::uint64_t{15} << (row * 4));
      attend_row(q_, k_, v_, y_, lse_, params_, first + row);
    }
  }

  /// Read again at each use, which saves registers.
  __device__ static int lane_of_thread() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }

  const Maps& maps_;
  const Schedule& schedule_;
  const Params& params_;
  const T* const q_;
  const T* const k_;
  const T* const v_;
  T* const y_;
  float* const lse_;
  const int warp_ = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);  // uniform
};

template <class T, class P>
__global__ void __launch_bounds__(P::threads, 1)
    attend(const __grid_constant__ Maps maps, const __grid_constant__ Schedule schedule,
           const __grid_constant__ Params params, const T* q, const T* k, const T* v, T* y,
           float* lse) {
  Kernel<T, P>(maps, schedule, params, q, k, v, y, lse).run();
}

}  // namespace cudarelu::ops::attention::sm90

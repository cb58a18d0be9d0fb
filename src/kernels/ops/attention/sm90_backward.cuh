// The gradients of attention in float16 and bfloat16 on compute capability 9.0.
//
// A block has a tile of rows of k and v, and sums their gradients over the rows of q and grad_y
// that see them; or it has a tile of rows of q and grad_y, and sums the gradient of q over keys. So
// the scores and the gradients of the weights are computed twice, but nothing is added in global
// memory or exchanged between warpgroups: with its own rows as the rows of its products, a
// warpgroup holds weights and gradients of scores in registers, as the first operands of the
// products that follow.
//
// The sums for k and for v of up to 128 columns fit the registers of one warpgroup. Wider ones do
// not, so there blocks sum one of the two, and the scores are computed three times.
//
// One thread makes the copy engine bring the block's own rows, and a ring of tiles of the others.
// Two warpgroups compute: while one converts scores into weights, the other has the tensor cores.
// The product that gives the gradients of weights, and the sum of the gradient of v, also go on
// meanwhile.
#pragma once

#include "ops/attention/exact_backward.cuh"
#include "ops/attention/sm90_shared.cuh"

namespace cudarelu::ops::attention::sm90 {

/// What a block gives.
enum class GradientOf { keys_and_values, keys, values, queries };

/// How a tile is computed. `width`, of all matrices, is filled up with zeros.
template <GradientOf of, int width_, int columns_, int slots_>
struct BackwardConfig {
  static constexpr bool of_keys = of != GradientOf::queries;  // has rows of k and v, else of q
  static constexpr bool gives_values = of_keys && of != GradientOf::keys;
  static constexpr bool differentiates = of != GradientOf::values;  // gives that of k or q
  static constexpr int width = width_;
  static constexpr int columns = columns_;  // of scores: the rows of a slot
  static constexpr int slots = slots_;      // for tiles of one of the other matrices

  static constexpr int groups = 2;  // warpgroups that compute
  static constexpr int rows = groups * group_rows;
  static constexpr int computing_threads = groups * 128;
  static constexpr int threads = computing_threads + 128;  // only warpgroups release registers
  static constexpr int own_bytes = rows * width * 2;
  static constexpr int all_own_bytes = (differentiates ? 2 : 1) * own_bytes;
  static constexpr int slot_bytes = columns * width * 2;
  static constexpr int stats_bytes = of_keys ? columns * 8 : 0;
  static constexpr int header_bytes = 256;  // for barriers, at the end
  static constexpr int shared_bytes =
      all_own_bytes + slots * (slot_bytes + stats_bytes) + header_bytes;
  static_assert(shared_bytes <= 227 * 1024 && (2 * slots + 1) * 8 <= header_bytes);
  static_assert(slot_bytes % 1024 == 0 && columns % 16 == 0);
};

/// The tiles of one kind. `other` is of the matrices that a block goes through.
struct BackwardTiles {
  int row_tiles;      // of a head
  int heads;          // in all of the batch
  int heads_at_once;  // whose other matrices the cache holds
  int rows;           // of a head
  int columns;        // of scores: other rows of a head
};

/// For both kinds.
struct GradientCall {
  BackwardTiles keys;
  BackwardTiles queries;
  Divisor heads_of_item;
  Divisor kv_heads_of_item;
  int key_blocks;   // come first; if others give the gradient of v, as many of those follow
  int group;        // heads of q that share keys and values
  float log_scale;  // of scores, times log2(e)
  float scale;
  bool is_causal;
};

/// q and grad_y, or k and v.
struct Pair {
  CUtensorMap first, second;
};

struct GradientMaps {
  Pair own, other;
};

/// What is known of queries, in the tiles that the blocks of keys go through: for each tile of a
/// head, -lse log2(e) of its queries, then the sums of grad_y y, less grad_lse.
struct Stats {
  float* data;
  int tiles;    // of a head
  int queries;  // of a tile
};

template <class T>
struct Gradients {
  T *q, *k, *v;
};

template <class T, class P>
class GradientKernel {
 public:
  __device__ GradientKernel(const GradientMaps& maps, const BackwardTiles& work,
                            const GradientCall& call, const Stats& stats, int number)
      : maps_(maps), work_(work), call_(call), stats_(stats) {
    // Long tiles come first.
    const auto [head, line] = HeadTile::of(work, number);
    head_ = head;
    row_ = (P::of_keys ? line : work.row_tiles - 1 - line) * P::rows;
    const int end =
        !P::of_keys && call.is_causal ? min(work.columns, row_ + P::rows) : work.columns;
    first_step_ = P::of_keys && call.is_causal ? row_ / P::columns : 0;
    steps_ = (end + P::columns - 1) / P::columns;
  }

  __device__ static void start() {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(own_full(), 1);
      for (int slot = 0; slot < P::slots; ++slot) {
        ptx::mbarrier_init(full(slot), 1);
        ptx::mbarrier_init(empty(slot), P::groups);
      }
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
  }

  /// Requests all tiles, in one thread.
  __device__ void fetch_all() const {
    expect(own_full(), P::all_own_bytes);
    const Head of_own = own_head();
    request<P::rows, P::width>(maps_.own.first, own(0), row_, of_own, own_full());
    if constexpr (P::differentiates) {
      request<P::rows, P::width>(maps_.own.second, own(1), row_, of_own, own_full());
    }
    Ring ring;
    for (int member = 0; member < members(); ++member) {
      const Head head{P::of_keys ? of_own.head * call_.group + member : of_own.head / call_.group,
                      of_own.item};
      // The second matrix of a step comes first: of most kinds, its slot is free earlier.
      for (int step = first_step_; step < steps_; ++step) {
        const int row = step * P::columns;
        wait(empty(ring.stage), ring.parity ^ 1);
        expect(full(ring.stage), P::slot_bytes);
        request<P::columns, P::width>(maps_.other.second, other(ring.stage), row, head,
                                      full(ring.stage));
        ring.advance();
        wait(empty(ring.stage), ring.parity ^ 1);
        std::uint64_t* const barrier = full(ring.stage);
        expect(barrier, P::slot_bytes + P::stats_bytes);
        request<P::columns, P::width>(maps_.other.first, other(ring.stage), row, head, barrier);
        if constexpr (P::of_keys) {
          const std::int64_t number = static_cast<std::int64_t>(head_) * call_.group + member;
          const std::int64_t tile = number * stats_.tiles + step;
          ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, stats(ring.stage),
                             stats_.data + tile * (2 * P::columns),
                             static_cast<std::uint32_t>(P::stats_bytes), barrier);
        }
        ring.advance();
      }
    }
  }

  /// Computes the part of a warpgroup.
  __device__ void compute(const Params& params, const GradientInputs<T>& inputs,
                          const Gradients<T>& gradients) const {
    const int row = row_ + warp_ / 4 * group_rows;
    float shift[2];  // of the rows, if they are queries
    float slope[2];
    if constexpr (!P::of_keys) load_stats(row, shift, slope);
    Sums sums{};  // of the gradient of q or k
    ValueSums value_sums{};
    wait(own_full(), 0);
    Ring first;  // the slots of a step
    Ring second;
    first.advance();
    int step = first_step_;
    int left = members() * max(steps_ - first_step_, 0);
    const auto advance = [&] {
      first.advance(2);
      second.advance(2);
      step = step + 1 == steps_ ? first_step_ : step + 1;
      --left;
    };
    const auto wait_for = [](const Ring& slot) { wait(full(slot.stage), slot.parity); };
    // Whether there is another tile; releases hidden ones.
    const auto find_next = [&] {
      for (; left > 0; advance()) {
        const int column = step * P::columns;
        if (row < work_.rows && !(call_.is_causal && is_hidden(row, column))) return true;
        wait_for(second);
        release(empty(second.stage));
        wait_for(first);
        release(empty(first.stage));
      }
      return false;
    };
    for (; find_next(); advance()) {
      Scores scores, products;
      wait_for(first);
      wgmma::fence();
      multiply(scores, 0, first.stage);
      wait_for(second);
      if constexpr (P::differentiates) multiply(products, 1, second.stage);
      wgmma::wait<P::differentiates ? 1 : 0>();
      pin(scores);
      hide(scores, row, step * P::columns);
      weigh(scores, shift, first.stage);
      if constexpr (P::gives_values) {
        Factors weights;
        pack_all(scores, weights);
        pin(weights);
        wgmma::fence();
        add(value_sums, weights, other(second.stage));
        wgmma::wait<P::differentiates ? 1 : 0>();
      } else {
        keep_before(scores);
        wgmma::wait<0>();
        release(empty(second.stage));
      }
      if constexpr (P::differentiates) {
        pin(products);
        differentiate(products, scores, slope, first.stage);
        Factors factors;
        pack_all(products, factors);
        pin(factors);
        wgmma::fence();
        add(sums, factors, other(first.stage));
        wgmma::wait<0>();
        pin(sums);
      }
      if constexpr (P::gives_values) {
        pin(value_sums);
        release(empty(second.stage));
      }
      release(empty(first.stage));
    }
    finish(sums, value_sums, row, params, inputs, gradients);
  }

 private:
  using Ring = gpu::PipelineState<P::slots>;
  using Scores = float[P::columns / 2];
  using Factors = unsigned[P::columns / 4];  // the first operand of a product
  using Row = float[P::width / 2];
  using Sums = float[P::differentiates ? P::width / 2 : 1];
  using ValueSums = float[P::gives_values ? P::width / 2 : 1];

  __device__ static char* shared() {
    extern __shared__ __align__(1024) char memory[];
    return memory;
  }
  __device__ static char* own(int number) { return shared() + number * P::own_bytes; }
  __device__ static char* other(int slot) {
    return shared() + P::all_own_bytes + slot * P::slot_bytes;
  }
  __device__ static float* stats(int slot) {
    return reinterpret_cast<float*>(shared() + P::all_own_bytes + P::slots * P::slot_bytes +
                                    slot * P::stats_bytes);
  }
  __device__ static std::uint64_t* barrier(int number) {
    return reinterpret_cast<std::uint64_t*>(shared() + P::shared_bytes - P::header_bytes) + number;
  }
  __device__ static std::uint64_t* own_full() { return barrier(0); }
  __device__ static std::uint64_t* full(int slot) { return barrier(1 + slot); }
  __device__ static std::uint64_t* empty(int slot) { return barrier(1 + P::slots + slot); }

  __device__ Head own_head() const {
    return Head::of(head_, P::of_keys ? call_.kv_heads_of_item : call_.heads_of_item);
  }

  /// The heads of the other matrices.
  __device__ int members() const { return P::of_keys ? call_.group : 1; }

  /// Whether causal order hides all scores of a warpgroup in a tile.
  __device__ static bool is_hidden(int row, int column) {
    return P::of_keys ? column + P::columns <= row : column >= row + group_rows;
  }

  /// Starts the product of own and other matrices.
  __device__ void multiply(Scores& scores, int number, int slot) const {
    constexpr int line = wgmma::line_bytes / 16;
    const std::uint64_t a =
        wgmma::descriptor(own(number) + warp_ / 4 * group_rows * wgmma::line_bytes);
    const std::uint64_t b = wgmma::descriptor(other(slot));
#pragma unroll
    for (int i = 0; i < P::width / 16; ++i) {
      const int offset = i % 4 * static_cast<int>(wgmma::depth_step<true>);
      wgmma::multiply<T, P::columns, true, true>(scores, a + offset + i / 4 * (P::rows * line),
                                                 b + offset + i / 4 * (P::columns * line), i > 0);
    }
    wgmma::commit();
  }

  /// Starts to add the product of factors and a matrix.
  __device__ static void add(Row& sums, const Factors& factors, const char* matrix) {
    const std::uint64_t b = wgmma::descriptor(matrix, P::columns * wgmma::line_bytes);
#pragma unroll
    for (int i = 0; i < P::columns / 16; ++i) {
      wgmma::add_product<T, P::width>(sums, &factors[4 * i], b + i * wgmma::depth_step<false>);
    }
    wgmma::commit();
  }

  /// Sets hidden scores to -infinity. Queries that do not exist have a shift of -infinity.
  __device__ void hide(Scores& scores, int row, int column) const {
    if constexpr (P::of_keys) {
      if (!call_.is_causal || column >= row + group_rows - 1) return;
    } else {
      const int all_see = call_.is_causal ? min(work_.columns, row + 1) : work_.columns;
      if (column + P::columns <= all_see) return;
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = row + warp_ % 4 * 16 + lane / 4 + 8 * h;
      const int bound =
          P::of_keys ? own : (call_.is_causal ? min(work_.columns, own + 1) : work_.columns);
      const int count = bound - column - lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < P::columns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if ((8 * j + i < count) == P::of_keys) scores[4 * j + 2 * h + i] = low<float>;
        }
      }
    }
  }

  /// The shifts of two columns, or their slopes.
  __device__ static float2 pair_of(int slot, int first, int j) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return *reinterpret_cast<const float2*>(stats(slot) + first + 8 * j + lane % 4 * 2);
  }

  /// Converts scores into weights.
  __device__ void weigh(Scores& scores, const float (&shift)[2], int slot) const {
#pragma unroll
    for (int j = 0; j < P::columns / 8; ++j) {
      float2 both{};
      if constexpr (P::of_keys) both = pair_of(slot, 0, j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float by = P::of_keys ? (i == 0 ? both.x : both.y) : shift[h];
          float& score = scores[4 * j + 2 * h + i];
          score = power_of_two(fmaf(score, call_.log_scale, by));
        }
      }
    }
  }

  /// Converts the gradients of weights into those of scores.
  __device__ static void differentiate(Scores& products, const Scores& weights,
                                       const float (&slope)[2], int slot) {
#pragma unroll
    for (int j = 0; j < P::columns / 8; ++j) {
      float2 both{};
      if constexpr (P::of_keys) both = pair_of(slot, P::columns, j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int i_of_row = 4 * j + 2 * h + i;
          const float by = P::of_keys ? (i == 0 ? both.x : both.y) : slope[h];
          products[i_of_row] = weights[i_of_row] * (products[i_of_row] - by);
        }
      }
    }
  }

  __device__ static void pack_all(const Scores& values, Factors& factors) {
#pragma unroll
    for (int i = 0; i < P::columns / 4; ++i) {
      factors[i] = pack<T>(values[2 * i], values[2 * i + 1]);
    }
  }

  /// The shifts and the slopes of the two rows of a thread.
  __device__ void load_stats(int first, float (&shift)[2], float (&slope)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first + warp_ % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * h;
      const bool inside = row < work_.rows;
      const std::int64_t tile =
          static_cast<std::int64_t>(head_) * stats_.tiles + row / stats_.queries;
      const float* const from = stats_.data + tile * (2 * stats_.queries) + row % stats_.queries;
      shift[h] = inside ? from[0] : low<float>;
      slope[h] = inside ? from[stats_.queries] : 0.0f;
    }
  }

  /// Writes the gradients of a warpgroup's rows.
  __device__ void finish(Sums& sums, const ValueSums& value_sums, int first, const Params& params,
                         const GradientInputs<T>& inputs, const Gradients<T>& gradients) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int top = first + warp_ % 4 * 16;
    const Head head = own_head();
#pragma unroll
    for (float& sum : sums) sum *= call_.scale;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = top + lane / 4 + 8 * h;
      const bool inside = row < work_.rows;
      // Hidden elements that are not finite, times 0, are NaN: such rows are computed again. So is
      // an infinite element of a key times the zeros of queries past the end.
      const bool may_be_wrong = call_.is_causal || (P::of_keys && work_.columns % P::columns != 0);
      bool is_finite = true;
      if constexpr (P::differentiates) is_finite &= are_finite(sums, h);
      if constexpr (P::gives_values) is_finite &= are_finite(value_sums, h);
      unsigned wrong = __ballot_sync(~0u, may_be_wrong && inside && !is_finite);
      const bool writes = inside && (wrong >> (lane & 28) & 15) == 0;
      const auto row_of = [&](T* matrix, const Layout& layout) {
        return matrix + layout.offset(head.item, head.head) + row * layout.row;
      };
      if constexpr (P::differentiates && P::of_keys) {
        write_results(sums, h, lane, writes, row_of(gradients.k, params.grad_k), params.width);
      }
      if constexpr (P::gives_values) {
        write_results(value_sums, h, lane, writes, row_of(gradients.v, params.grad_v),
                      params.value_width);
      }
      if constexpr (!P::of_keys) {
        write_results(sums, h, lane, writes, row_of(gradients.q, params.grad_q), params.width);
      }
      while (wrong != 0) {
        const int quad = (__ffs(static_cast<int>(wrong)) - 1) / 4;
        wrong &= ~(15u << (quad * 4));
        const std::int64_t again =
            static_cast<std::int64_t>(head_) * work_.rows + top + quad + 8 * h;
        if constexpr (P::of_keys) {
          write_gradients_of_key(params, inputs, again, P::differentiates ? gradients.k : nullptr,
                                 P::gives_values ? gradients.v : nullptr);
        } else {
          write_gradient_of_query(params, inputs, again, gradients.q);
        }
      }
    }
  }

  __device__ static bool are_finite(const Row& sums, int h) {
    bool are = true;
#pragma unroll
    for (int j = 0; j < P::width / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) are &= fabsf(sums[4 * j + 2 * h + i]) < -low<float>;
    }
    return are;
  }

  const GradientMaps& maps_;
  const BackwardTiles& work_;
  const GradientCall& call_;
  const Stats& stats_;
  const int warp_ = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);  // uniform
  int head_;
  int row_;
  int first_step_;
  int steps_;
};

/// Computes the stats, for a padded number of `queries`: those that do not exist have no weights.
template <class T, int lanes>
__global__ void __launch_bounds__(256)
    prepare(Stats stats, GradientInputs<T> inputs, const __grid_constant__ Params p,
            Divisor heads_of_item, std::int64_t heads) {
  const auto queries = static_cast<int>(p.queries);
  gpu::let_next_kernel_start();
  gpu::wait_for_previous_kernel();
  const std::int64_t number =
      static_cast<std::int64_t>(blockIdx.x) * (256 / lanes) + static_cast<int>(threadIdx.x) / lanes;
  const std::int64_t tile = number / stats.queries;
  const int in_tile = static_cast<int>(number % stats.queries);
  const std::int64_t head = tile / stats.tiles;
  const int query = static_cast<int>(tile % stats.tiles) * stats.queries + in_tile;
  const bool inside = head < heads && query < queries;
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
  float sum = 0;
  if (inside && column < p.value_width) {
    const Head at = Head::of(static_cast<int>(head), heads_of_item);
    const auto read = [&](const T* tensor, const Layout& layout) {
      return *reinterpret_cast<const uint4*>(tensor + layout.offset(at.item, at.head) +
                                             query * layout.row + column);
    };
    const uint4 a = read(inputs.grad_y, p.grad_y);
    const uint4 b = read(inputs.y, p.y);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum = fmaf(load(reinterpret_cast<const T*>(&a)[i]), load(reinterpret_cast<const T*>(&b)[i]),
                 sum);
    }
  }
  sum = gpu::sum_in_warp<lanes>(sum);
  if (head < heads && threadIdx.x % lanes == 0) {
    float* const to = stats.data + tile * (2 * stats.queries) + in_tile;
    if (inside && inputs.grad_lse != nullptr) sum -= inputs.grad_lse[head * queries + query];
    const float lse = inside ? inputs.lse[head * queries + query] : low<float>;
    to[0] = lse == low<float> ? low<float> : lse * -1.44269504f;
    to[stats.queries] = sum;
  }
}

/// Computes tiles of keys by the plan K, and by V if K does not give the gradient of v, then tiles
/// of queries by Q.
template <class T, class K, class V, class Q>
__global__ void __launch_bounds__(K::threads, 1)
    differentiate(const __grid_constant__ GradientMaps key_maps,
                  const __grid_constant__ GradientMaps query_maps,
                  const __grid_constant__ GradientCall call, const __grid_constant__ Stats stats,
                  const __grid_constant__ Params params,
                  const __grid_constant__ GradientInputs<T> inputs,
                  const __grid_constant__ Gradients<T> gradients) {
  static_assert(K::threads == Q::threads);
  static_assert(V::threads == K::threads && V::rows == K::rows && V::columns == K::columns);
  const auto with_kernel = [&](const auto& use) {
    int number = static_cast<int>(blockIdx.x);
    if (number < call.key_blocks) {
      use(GradientKernel<T, K>(key_maps, call.keys, call, stats, number));
      return;
    }
    number -= call.key_blocks;
    if constexpr (!K::gives_values) {
      if (number < call.key_blocks) {
        use(GradientKernel<T, V>(key_maps, call.keys, call, stats, number));
        return;
      }
      number -= call.key_blocks;
    }
    use(GradientKernel<T, Q>(query_maps, call.queries, call, stats, number));
  };
  with_kernel([](const auto& kernel) { kernel.start(); });
  __syncthreads();
  gpu::let_next_kernel_start();
  if (threadIdx.x >= K::computing_threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == K::computing_threads) {
      gpu::wait_for_previous_kernel();
      with_kernel([](const auto& kernel) { kernel.fetch_all(); });
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    gpu::wait_for_previous_kernel();
    with_kernel([&](const auto& kernel) { kernel.compute(params, inputs, gradients); });
  }
}

}  // namespace cudarelu::ops::attention::sm90

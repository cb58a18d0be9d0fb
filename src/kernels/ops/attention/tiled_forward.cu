// Attention in float32 and float64. A block keeps rows of q, and the tiles of k and v pass: for
// each it computes the scores, and their exponentials relative to the largest score so far, which
// weight the rows of v. Where that largest score rises, the sums so far are scaled. Two groups of a
// block alternate with the tiles, and their results are combined at the end.
#include "ops/attention/tiled.cuh"

namespace cudarelu::ops::attention {
namespace {

using namespace tiled;

template <class T>
struct Tensors {
  const T* q;
  const T* k;
  const T* v;
  T* y;
  float* lse;          // may be null
  bool vectors;        // rows of k can be read 16 bytes at a time
  bool value_vectors;  // rows of v and y can be accessed 16 bytes at a time
};

/// The tiles of keys of a group.
struct Tiles {
  int start;
  int step;
  int end;

  __device__ int first() const { return start; }
  __device__ int next(int first) const { return first + step; }
  __device__ bool has(int first) const { return first < end; }
};

/// What the threads that hold the scores of a row pass on to those that hold its results.
template <class P>
struct Rows {
  using T = typename P::T;
  T factors[P::rows];  // of the sums so far; at the end, of the results
  T largest[P::rows];  // score
  T totals[P::rows];   // of the weights
};

template <class P>
struct Shared {
  Limits<P::rows> limits;
  Rows<P> rows[2];  // of both groups
  int flags[P::rows];
};

/// The elements of shared memory of a group.
template <class P>
constexpr int group_size = P::factors_size + P::ring_size;

/// The rows from `first_row` on of the heads that share a head of k. Of packed sequences, a score
/// of -infinity does not hide a key.
template <class P>
__device__ __forceinline__ void attend_rows(const Tensors<typename P::T>& tensors, const Params& p,
                                            bool packed, const Queries& queries, int first_row) {
  using T = typename P::T;
  using S = typename P::Scores;
  using R = typename P::Results;
  extern __shared__ float4 dynamic[];
  __shared__ Shared<P> shared;
  const auto thread = static_cast<int>(threadIdx.x) % threads;
  const auto group = static_cast<int>(threadIdx.x) / threads;
  const auto groups = static_cast<int>(blockDim.x) / threads;
  T* const staying = reinterpret_cast<T*>(dynamic);
  T* const weights = staying + P::staying_size + group * group_size<P>;
  Rows<P>& rows = shared.rows[group];

  const auto keys = static_cast<int>(p.keys);
  const auto width = static_cast<int>(p.width);
  const auto value_width = static_cast<int>(p.value_width);
  const Matrix<T> q{p.queries_of(tensors.q, p.q, queries.kv).in_int(), queries.count, width, false};
  const Matrix<T> k{p.keys_of(tensors.k, p.k, queries.kv).in_int(), keys, width, tensors.vectors};
  const Matrix<T> v{p.keys_of(tensors.v, p.v, queries.kv).in_int(), keys, value_width,
                    tensors.value_vectors};
  const Tiles tiles{group * P::others, groups * P::others,
                    queries.max_visible(p, first_row, P::rows)};
  const int min_visible = p.mask.data != nullptr ? 0 : queries.min_visible(p, first_row, P::rows);

  const S score_share(thread);
  const R result_share(thread);
  const int steps = (width + P::depth - 1) / P::depth;
  for (int step = 0; step < steps; ++step) {
    copy_turned<P::rows, P::pitch, P::depth>(staying + step * P::depth * P::pitch, q, first_row,
                                             step * P::depth, static_cast<int>(threadIdx.x),
                                             groups * threads);
  }
  Stream<P, Tiles> stream(weights + P::factors_size, group, tiles, k, steps, v);
  if (group == 0) shared.limits.set(p, queries, first_row, thread);
  if (thread < P::rows) shared.flags[thread] = 0;
  gpu::wait_for_copies<0>();
  __syncthreads();

  T sums[R::rows][R::columns] = {};
  T largest[S::rows];      // score of a row so far
  T totals[S::rows] = {};  // of the weights of this thread's columns
#pragma unroll
  for (T& score : largest) score = low<T>;
  for (int first = tiles.first(); tiles.has(first); first = tiles.next(first)) {
    T scores[S::rows][S::columns] = {};
    for (int step = 0; step < steps; ++step) {
      const T* const stage = stream.next();
      multiply<S, P::depth, P::pitch, P::other_pitch>(
          scores, staying + step * P::depth * P::pitch + score_share.row,
          stage + score_share.column);
    }
#pragma unroll
    for (auto& row : scores) {
#pragma unroll
      for (T& score : row) score *= static_cast<T>(p.scale);
    }
    if (first + P::others > min_visible) {
      apply_mask<S, false>(p, scores, score_share, shared.limits, first);
    }
#pragma unroll
    for (int i = 0; i < S::rows; ++i) {
      T raised = largest[i];  // ignores NaN, which propagates through the total
#pragma unroll
      for (const T score : scores[i]) raised = fmax(raised, score);
      raised = S::reduce(raised, [](T a, T b) { return fmax(a, b); });
      const T base = raised == low<T> ? T(0) : raised;  // -infinity less itself is NaN
      const T factor = power(largest[i] - base);
      largest[i] = raised;
      T total = 0;
#pragma unroll
      for (T& score : scores[i]) total += score = power(score - base);
      totals[i] = fma(totals[i], factor, total);
      if (score_share.column == 0) rows.factors[score_share.row + S::row_step(i)] = factor;
    }
    write_factors<P>(weights, score_share, scores);
    for (int line = 0; line < P::others; line += P::lines) {
      const T* const stage = stream.next();
      if (line == 0) {
#pragma unroll
        for (int i = 0; i < R::rows; ++i) {
          const T factor = rows.factors[result_share.row + R::row_step(i)];
#pragma unroll
          for (T& sum : sums[i]) sum *= factor;
        }
      }
      multiply<R, P::lines, P::pitch, P::width>(sums, weights + line * P::pitch + result_share.row,
                                                stage + result_share.column);
    }
  }

  // The results of both groups. Those of the second one pass through shared memory.
  T* const passed = staying + thread;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < S::rows; ++i) {
    const int row = score_share.row + S::row_step(i);
    const T total = S::reduce(totals[i], [](T a, T b) { return a + b; });
    if (score_share.column == 0) {
      rows.largest[row] = largest[i];
      rows.totals[row] = total;
    }
  }
  if (group == 1) {
#pragma unroll
    for (int n = 0; n < R::rows * R::columns; ++n) {
      passed[n * threads] = sums[n / R::columns][n % R::columns];
    }
  }
  __syncthreads();
  if (group == 0 && thread < P::rows) {
    Rows<P>& other = shared.rows[groups - 1];
    const T largest = fmax(rows.largest[thread], other.largest[thread]);
    const T base = largest == low<T> ? T(0) : largest;
    const T factor = power(rows.largest[thread] - base);
    const T other_factor = groups == 1 ? T(0) : power(other.largest[thread] - base);
    const T total = rows.totals[thread] * factor + other.totals[thread] * other_factor;
    const T inverse = total == 0 ? T(0) : 1 / total;
    other.factors[thread] = other_factor * inverse;
    rows.factors[thread] = factor * inverse;
    rows.largest[thread] = largest;
    rows.totals[thread] = inverse;
    if (tensors.lse != nullptr && first_row + thread < queries.count) {
      const HeadRows<float, int> lse = p.queries_of(tensors.lse, p.lse, queries.kv).in_int();
      *lse[first_row + thread] = static_cast<float>(base + log(total));
    }
  }
  __syncthreads();
  const int rows_left = queries.count - first_row;
  const HeadRows<T, int> y = p.queries_of(tensors.y, p.y, queries.kv).in_int();
  bool has_nan = false;
  if (group == 0) {
#pragma unroll
    for (int i = 0; i < R::rows; ++i) {
      const int row = result_share.row + R::row_step(i);
#pragma unroll
      for (int j = 0; j < R::columns; ++j) {
        sums[i][j] *= rows.factors[row];
        if (groups == 2) {
          sums[i][j] =
              fma(passed[(i * R::columns + j) * threads], shared.rows[1].factors[row], sums[i][j]);
        }
      }
    }
    has_nan = write_results(sums, result_share, T(1), y, first_row, rows_left, value_width,
                            tensors.value_vectors, shared.flags);
  }
  const bool may_hide = p.is_causal || p.mask.data != nullptr;
  if (!__syncthreads_or(has_nan && may_hide)) return;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < P::rows; row += groups * threads / 32) {
    const T inverse = shared.rows[0].totals[row];
    if (shared.flags[row] == 0 || inverse != inverse) continue;  // visible scores are NaN
    const T* const query = q.at[first_row + row];
    sum_visible(v, inverse, y[first_row + row], [&](int key) {
      if (key >= shared.limits.visible[row]) return Weight<T>{0, true};
      const std::int64_t offset = shared.limits.mask_offsets[row] + key * p.mask.key_stride;
      const T score = score_of(p, query, k.at[key], offset);
      return Weight<T>{power(score - shared.rows[0].largest[row]), !packed && score == low<T>};
    });
  }
}

template <class P>
__global__ void __launch_bounds__(2 * threads, 1)
    attend_tiles(const __grid_constant__ Tensors<typename P::T> tensors,
                 const __grid_constant__ Params p) {
  // Under a causal mask, the blocks with the most keys come first.
  const std::int64_t heads = p.batch * p.kv_heads;
  const auto tiles_of_head = static_cast<int>(gpu::ceil_div(p.group() * p.queries, P::rows));
  const int tile = tiles_of_head - 1 - static_cast<int>(blockIdx.x / heads);
  gpu::wait_for_previous_kernel();
  attend_rows<P>(tensors, p, false, Queries::of(p, blockIdx.x % heads), tile * P::rows);
}

/// The same for packed sequences, of which the rows of `p` are all, in `slots` slots; if
/// P::shares_kernel, also for others, if not `is_packed`: for `slots` tiles of each head.
template <class P>
__global__ void __launch_bounds__(2 * threads, 1)
    attend_packed_tiles(const __grid_constant__ Tensors<typename P::T> tensors,
                        const __grid_constant__ Params p, const Sequences sequences, int slots,
                        bool is_packed) {
  using OwnOfBlock = Own<Tensors<typename P::T>>;
  __shared__ __align__(16) char memory[sizeof(OwnOfBlock)];
  OwnOfBlock& own = *reinterpret_cast<OwnOfBlock*>(memory);
  const bool packed = !P::shares_kernel || is_packed;
  const std::int64_t heads = p.batch * p.kv_heads;
  const int kv = static_cast<int>(blockIdx.x % heads);
  const int slot = slots - 1 - static_cast<int>(blockIdx.x / heads);
  gpu::wait_for_previous_kernel();
  if (threadIdx.x < 32) {
    PackedTile tile{0, {0, p.queries}, std::int64_t{slot} * P::rows};
    if (packed) {
      tile = find_tile<P::rows>(slot, sequences.q_ends, static_cast<int>(sequences.count),
                                p.queries, p.group());
    }
    if (threadIdx.x == 0) own.tile = tile;
  } else if (threadIdx.x < 64) {
    copy_words<32>(p, own.params, threadIdx.x - 32);
    copy_words<32>(tensors, own.tensors, threadIdx.x - 32);
  }
  __syncthreads();
  if (!own.tile.exists(p.group())) return;
  if (packed && threadIdx.x == 0) {
    const Batch& queries = own.tile.sequence;
    const Batch keys = keys_of(own.tile.number, sequences, p.keys);
    own.params.queries = queries.end - queries.begin;
    own.params.keys = keys.end - keys.begin;
    own.tensors.q += queries.begin * p.q.row;
    own.tensors.k += keys.begin * p.k.row;
    own.tensors.v += keys.begin * p.v.row;
    own.tensors.y += queries.begin * p.y.row;
    if (own.tensors.lse != nullptr) own.tensors.lse += queries.begin * p.lse.row;
  }
  __syncthreads();
  attend_rows<P>(own.tensors, own.params, packed, Queries::of(own.params, kv),
                 static_cast<int>(own.tile.first));
}

/// `sequences` is null if they are not packed.
std::optional<Status> run(const Call& call, const Params& p, const Sequences* sequences,
                          float* lse) {
  return with_tiling(p, call.inputs[0].dtype, [&]<class P>(TypeTag<P>) -> std::optional<Status> {
    using T = typename P::T;
    const auto input = [&](std::size_t i) { return static_cast<const T*>(call.inputs[i].data); };
    T* const y = static_cast<T*>(call.outputs[0].data);
    const Tensors<T> tensors{input(0),
                             input(1),
                             input(2),
                             y,
                             lse,
                             has_vectors<T>(p.width, {{input(1), p.k}}),
                             has_vectors<T>(p.value_width, {{input(2), p.v}, {y, p.y}})};
    const std::int64_t rows = p.group() * p.queries;
    constexpr int size = sizeof(T);
    constexpr int max_bytes = size * (P::staying_size + 2 * group_size<P>);
    if (sequences != nullptr) {
      const std::int64_t slots = tile_slots(rows, sequences->count, P::rows);
      if (slots > INT_MAX / p.kv_heads) return std::nullopt;
      constexpr int groups = 1;  // most sequences have few tiles of keys
      return launch_blocks<attend_packed_tiles<P>, max_bytes>(
          call, p.kv_heads * slots, groups, size * (P::staying_size + groups * group_size<P>),
          tensors, p, *sequences, static_cast<int>(slots), true);
    }
    const std::int64_t tiles = gpu::ceil_div(rows, P::rows);
    const std::int64_t blocks = p.batch * p.kv_heads * tiles;
    const auto launch_groups = [&](int groups) {
      const int bytes = size * (P::staying_size + groups * group_size<P>);
      if constexpr (P::shares_kernel) {
        return launch_blocks<attend_packed_tiles<P>, max_bytes>(
            call, blocks, groups, bytes, tensors, p, Sequences{}, static_cast<int>(tiles), false);
      } else {
        return launch_blocks<attend_tiles<P>, max_bytes>(call, blocks, groups, bytes, tensors, p);
      }
    };
    // Blocks of two groups end at different times, which is good where their work differs, or where
    // there are few; of one group, two blocks on a multiprocessor are a little faster.
    const bool few = rows <= 4 * P::rows;
    if (p.keys > P::others && (p.is_causal || few)) {
      if (std::optional<Status> status = launch_groups(2)) return status;
    }
    return launch_groups(1);
  });
}

}  // namespace

std::optional<Status> tiled_forward(const Call& call, const Params& p, float* lse) {
  return run(call, p, nullptr, lse);
}

std::optional<Status> tiled_packed_forward(const Call& call, const Params& p,
                                           const Sequences& sequences, float* lse) {
  return run(call, p, &sequences, lse);
}

}  // namespace cudarelu::ops::attention

// The gradients of attention in float32 and float64. A block keeps rows of k and v, and the tiles
// of q and grad_y pass. The first group of the block computes the scores and from them the weights,
// which give grad_v; the second one the products of grad_y and v, and from these and the weights
// the gradients of the scores, which give grad_k.
//
// The gradients of the scores also give grad_q, the sum over the blocks of a head: each adds to it
// what its keys give, in their order, so that the result is always the same. A block begins only
// after those before it, by its ticket, and with the queries that they begin with; so it seldom
// waits, and never for one that cannot run.
#include "cudarelu/detail/workspace.h"
#include "ops/attention/exact_backward.cuh"
#include "ops/attention/tiled.cuh"

namespace cudarelu::ops::attention {
namespace {

using namespace tiled;

template <class T>
struct Tensors {
  const T* grad_y;
  const T* q;
  const T* k;
  const T* v;
  const T* y;
  const T* lse;
  const float* grad_lse;  // or null
  T* grad_q;
  T* grad_k;
  T* grad_v;
  T* slopes;           // the sum of grad_y y, less grad_lse, for each query
  int* ticket;         // of the next block
  int* semaphores;     // for each head and tile of queries: the tile of keys that may add
  bool vectors;        // rows of q, k and grad_k can be accessed 16 bytes at a time
  bool value_vectors;  // rows of grad_y and grad_v can
};

/// Sets the slopes; and the ticket and the semaphores, `counters` numbers, to 0. Of packed
/// sequences, also fills the workspace, and sets the gradients of queries without keys to 0. The
/// numbers of a sequence then follow those of the one before.
template <class T, bool packed>
__global__ void __launch_bounds__(32 * warps)
    prepare(const __grid_constant__ Tensors<T> tensors, const __grid_constant__ Params p,
            std::int64_t rows, std::int64_t counters, const Sequences sequences,
            const PackedWorkspace<T> workspace) {
  gpu::wait_for_previous_kernel();
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (number < counters) tensors.ticket[number] = 0;
  if (packed && blockIdx.x == 0) {
    order_offsets<32 * warps>(sequences, static_cast<int>(p.queries), static_cast<int>(p.keys),
                              workspace);
  }
  const std::int64_t row = row_of_warp();
  if (row >= rows) return;
  const Row at(p, row);
  std::int64_t offset = row;
  if constexpr (packed) {
    const std::int64_t sequence = batch_number(at.query, sequences.q_ends, sequences.count);
    const Batch keys = keys_of(static_cast<int>(sequence), sequences, p.keys);
    if (keys.begin == keys.end) {
      T* const grad_q = at.in(tensors.grad_q, p.grad_q);
      for (std::int64_t i = threadIdx.x % 32; i < p.width; i += 32) grad_q[i] = 0;
      return;
    }
    const Batch queries = in_order(batch_of(sequence, sequences.q_ends, p.queries));
    offset = p.heads * queries.begin + at.head * (queries.end - queries.begin) + at.query -
             queries.begin;
  }
  const T* const grads = at.in(tensors.grad_y, p.grad_y);
  const T* const results = at.in(tensors.y, p.y);
  T slope = 0;
  for (std::int64_t i = threadIdx.x % 32; i < p.value_width; i += 32) {
    slope = fma(grads[i], results[i], slope);
  }
  slope = gpu::sum_in_warp<32>(slope);
  if (tensors.grad_lse != nullptr) slope -= static_cast<T>(*at.in(tensors.grad_lse, p.lse));
  if (threadIdx.x % 32 != 0) return;
  tensors.slopes[offset] = slope;
  if constexpr (packed) workspace.lse[offset] = *at.in(tensors.lse, p.lse);
}

/// The tiles of the queries of all heads that share one of k, from the last one to the first one.
/// Under a causal mask, without those whose queries are all lower than `least`.
template <int size>
struct Tiles {
  int count;    // of all queries
  int queries;  // of a head
  int least;

  __device__ int first() const { return next((count + size - 1) / size * size); }
  __device__ int next(int first) const {
    do {
      first -= size;
    } while (first >= 0 && min(first % queries + size, queries) <= least);
    return first;
  }
  __device__ bool has(int first) const { return first >= 0; }
};

/// What a block needs of the tensors: the rows of its heads. In shared memory, to save registers.
template <class T>
struct Heads {
  Queries queries;
  Matrix<T> grad_y;
  Matrix<T> q;
  Matrix<T> k;
  Matrix<T> v;
  HeadRows<T, int> grad_q;
  const T* lse;
  const T* slopes;

  __device__ static Heads of(const Params& p, const Tensors<T>& tensors, const Queries& queries) {
    const auto keys = static_cast<int>(p.keys);
    const auto width = static_cast<int>(p.width);
    const auto value_width = static_cast<int>(p.value_width);
    const std::int64_t kv = queries.kv;
    return {queries,
            {p.queries_of(tensors.grad_y, p.grad_y, kv).in_int(), queries.count, value_width,
             tensors.value_vectors},
            {p.queries_of(tensors.q, p.q, kv).in_int(), queries.count, width, tensors.vectors},
            {p.keys_of(tensors.k, p.k, kv).in_int(), keys, width, tensors.vectors},
            {p.keys_of(tensors.v, p.v, kv).in_int(), keys, value_width, tensors.value_vectors},
            p.queries_of(tensors.grad_q, p.grad_q, kv).in_int(),
            tensors.lse + queries.first(),
            tensors.slopes + queries.first()};
  }
};

/// exp(score - lse), and -0 for a hidden key, whose score is -infinity.
template <class T>
__device__ T weight_of(T score, T lse) {
  return score == low<T> ? -T(0) : power(score - (lse == low<T> ? T(0) : lse));
}

/// Whether a weight is -0, which NaN is not: in float64 it may be negative.
__device__ __forceinline__ bool is_hidden(float weight) {
  return __float_as_uint(weight) == 0x80000000u;
}
__device__ __forceinline__ bool is_hidden(double weight) { return weight == 0 && signbit(weight); }

/// The score of a key that is not hidden by the order or the length. Of packed sequences, no such
/// key is hidden by a score of -infinity, which becomes the lowest finite number.
template <class T>
__device__ T score_in_sequence(bool packed, T score) {
  return packed && score == low<T> ? std::numeric_limits<T>::lowest() : score;
}

/// The weight of one key for one query, or the gradient of its score: for sum_visible().
/// Not inlined: few results have NaN, and need it.
template <class T>
__device__ __noinline__ Weight<T> weight_at(const Params& p, const Heads<T>& heads, bool packed,
                                            int query, int key, bool gradient) {
  const Queries& queries = heads.queries;
  if (key >= queries.visible(p, query)) return {0, true};
  const std::int64_t offset = queries.mask_offset(p, query) + key * p.mask.key_stride;
  const T score =
      score_in_sequence(packed, score_of(p, heads.q.at[query], heads.k.at[key], offset));
  const T weight = weight_of(score, heads.lse[query]);
  if (!gradient) return {weight, score == low<T>};
  const T product = dot(heads.grad_y.at[query], heads.v.at[key], p.value_width);
  return {weight * (product - heads.slopes[query]), score == low<T>};
}

/// Waits, in one thread, until another block has written a number.
__device__ __forceinline__ void wait_for(const int* from, int number) {
  int value = 0;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  } while (value != number);
}

/// Writes a number for wait_for(), after all that the group has written.
__device__ __forceinline__ void publish(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/// The part of grad_q that a group computes at once: some rows of a tile of queries, some columns.
template <class P>
struct Block {
  static constexpr int sums = 32;  // of a thread, at most
  static constexpr int rows = std::min(P::others, 64);
  static constexpr int columns = std::min(P::width, sums / (rows / 8) * 16);
  using Sums = Share<2, 4, rows / 8, columns / 16, 1>;
  static_assert(Sums::all_rows == rows && Sums::all_columns == columns);
};

/// sums = the products of rows of gradients and columns of k, both given from the thread's first
/// element on, as rows of shared memory.
template <class P, class S>
__device__ __forceinline__ void multiply_rows(typename P::T (&sums)[S::rows][S::columns],
                                              const typename P::T* gradients,
                                              const typename P::T* keys) {
  using T = typename P::T;
  constexpr int unrolled = S::rows * S::columns >= 32 ? 2 : 4;
#pragma unroll unrolled
  for (int k = 0; k < P::rows; k += P::vector) {
    Few<T> left[S::rows];
    Few<T> right[S::columns];
#pragma unroll
    for (int i = 0; i < S::rows; ++i) left[i] = read(gradients + S::row_step(i) * P::pitch + k);
#pragma unroll
    for (int j = 0; j < S::columns; ++j) right[j] = read(keys + S::column_step(j) * P::pitch + k);
#pragma unroll
    for (int e = 0; e < P::vector; ++e) {
#pragma unroll
      for (int n = 0; n < S::rows * S::columns; ++n) {
        const int i = gpu::back_and_forth(n, S::rows);
        const int j = n / S::rows;
        sums[i][j] = fma(left[i].x[e], right[j].x[e], sums[i][j]);
      }
    }
  }
}

/// The gradients of a tile of keys, and what they add to grad_q. The semaphores of a head are
/// `head_semaphores` numbers.
template <class P>
__device__ __forceinline__ void find_gradients(const Tensors<typename P::T>& tensors,
                                               const Params& p, bool packed, int kv,
                                               int tile_of_keys, std::int64_t head_semaphores) {
  using T = typename P::T;
  using S = typename P::Scores;
  using R = typename P::Results;
  using B = Block<P>;
  // Barriers: the weights, or the gradients of an even tile, are complete, or may be overwritten.
  enum { weights_full = 3, weights_free, gradients_full, gradients_free };
  constexpr int both = 2 * threads;
  extern __shared__ float4 dynamic[];
  __shared__ Limits<P::others> limits;
  __shared__ int flags[2][P::rows];
  __shared__ int has_nan;  // grad_q
  __shared__ Heads<T> heads;
  __shared__ T levels[2][P::others];  // the lse of the queries of a tile, and their slopes
  const auto thread = static_cast<int>(threadIdx.x) % threads;
  const auto group = static_cast<int>(threadIdx.x) / threads;
  const bool first_group = group == 0;
  T* const staying_keys = reinterpret_cast<T*>(dynamic);
  T* const staying = staying_keys + group * P::staying_size;
  T* const weights = staying_keys + 2 * P::staying_size;
  T* const even_gradients = weights + P::factors_size;  // of even tiles; those of odd ones follow
  T* const ring = even_gradients + 2 * P::factors_size + group * P::ring_size;

  const auto keys = static_cast<int>(p.keys);
  const int first_key = tile_of_keys * P::rows;
  if (threadIdx.x == 0) {
    has_nan = 0;
    heads = Heads<T>::of(p, tensors, Queries::of(p, kv));
  }
  if (thread < P::rows) flags[group][thread] = 0;
  __syncthreads();
  const Queries& queries = heads.queries;
  const Tiles<P::others> tiles{queries.count, static_cast<int>(p.queries),
                               p.is_causal ? first_key : 0};
  const bool may_hide = p.is_causal || p.mask.data != nullptr;

  const S score_share(thread);
  const R result_share(thread);
  const int steps = (max(heads.q.columns, heads.v.columns) + P::depth - 1) / P::depth;
  for (int step = 0; step < steps; ++step) {
    copy_turned<P::rows, P::pitch, P::depth>(staying + step * P::depth * P::pitch,
                                             first_group ? heads.k : heads.v, first_key,
                                             step * P::depth, thread, threads);
  }
  const Matrix<T>& scored = first_group ? heads.q : heads.grad_y;
  const Matrix<T>& weighted = first_group ? heads.grad_y : heads.q;
  Stream<P, Tiles<P::others>> stream(ring, group, tiles, scored, steps, weighted);
  gpu::wait_for_copies<0>();
  __syncthreads();

  // No later keys are visible to the queries of a tile.
  const auto is_last_for = [&](int first) {
    return first_key + P::rows >= queries.max_visible(p, first, P::others);
  };
  const auto add_to_grad_q = [&](int first, const T* gradients) {
    int* const semaphore = tensors.semaphores + first / P::others + queries.kv * head_semaphores;
    const typename B::Sums share(thread);
    const auto width = static_cast<int>(p.width);
    bool found = false;
    const auto add_block = [&](int first_row, int first_column) {
      T added[B::Sums::rows][B::Sums::columns] = {};
      multiply_rows<P, typename B::Sums>(added, gradients + (first_row + share.row) * P::pitch,
                                         staying_keys + (first_column + share.column) * P::pitch);
      if (first_row == 0 && first_column == 0) {
        if (thread == 0) wait_for(semaphore, tile_of_keys);
        wait_for_group(group);
      }
      const int row = first_row + share.row;
      const int column = first_column + share.column;
      heads.grad_q.visit(first, P::others, [&](const auto& rows) {
        const auto for_each = [&](const auto& use) {
#pragma unroll
          for (int i = 0; i < B::Sums::rows; ++i) {
            const int down = row + B::Sums::row_step(i);
            T* const at = rows(down) + column;
#pragma unroll
            for (int j = 0; j < B::Sums::columns; ++j) {
              const int right = B::Sums::column_step(j);
              if (first + down < queries.count && column + right < width)
                use(added[i][j], at + right);
            }
          }
        };
        for_each([&](T& sum, T*) { sum *= static_cast<T>(p.scale); });
        // Not from the first-level cache: another block has written it.
        if (tile_of_keys > 0) for_each([](T& sum, const T* at) { sum += __ldcg(at); });
        for_each([&](T sum, T* at) {
          *at = sum;
          found |= sum != sum;
        });
      });
    };
#pragma unroll 1
    for (int row = 0; row < P::others; row += B::rows) {
#pragma unroll 1
      for (int column = 0; column < width; column += B::columns) add_block(row, column);
    }
    if (found && may_hide && is_last_for(first)) has_nan = 1;
    wait_for_group(group);
    if (thread == 0) publish(semaphore, tile_of_keys + 1);
  };

  T sums[R::rows][R::columns] = {};
  bool has_weights = false;    // to be read, or being read, by the second group
  bool has_gradients = false;  // the same of those of an even tile, and the first group
  for (int first = tiles.first(); tiles.has(first); first = tiles.next(first)) {
    const int parity = first / P::others % 2;
    T* const gradients = even_gradients + parity * P::factors_size;
    T level = 0;  // of one query; they are used after the scores
    if (thread < P::others && first + thread < queries.count) {
      level = first_group ? heads.lse[first + thread] : heads.slopes[first + thread];
    }
    if (first_group) limits.set(p, queries, first, thread);
    T scores[S::rows][S::columns] = {};
    for (int step = 0; step < steps; ++step) {
      const T* const stage = stream.next();
      multiply<S, P::depth, P::pitch, P::other_pitch>(
          scores, staying + step * P::depth * P::pitch + score_share.row,
          stage + score_share.column);
    }
    if (thread < P::others) levels[group][thread] = level;
    wait_for_group(group);
    const auto level_of = [&](int j) {
      return levels[group][score_share.column + S::column_step(j)];
    };
    if (first_group) {
#pragma unroll
      for (auto& row : scores) {
#pragma unroll
        for (T& score : row) score = score_in_sequence(packed, score * static_cast<T>(p.scale));
      }
      if (p.mask.data != nullptr || first + P::others > queries.count ||
          first_key + P::rows > queries.min_visible(p, first, P::others)) {
        apply_mask<S, true>(p, scores, score_share, limits, first_key);
      }
#pragma unroll
      for (int j = 0; j < S::columns; ++j) {
        const T lse = level_of(j);
#pragma unroll
        for (auto& row : scores) row[j] = weight_of(row[j], lse);
      }
      if (has_weights) wait_at<both>(weights_free);
      write_factors<P>(weights, score_share, scores);
      arrive_at<both>(weights_full);
    } else {
      wait_at<both>(weights_full);
#pragma unroll
      for (int j = 0; j < S::columns; ++j) {
        const T slope = level_of(j);
#pragma unroll
        for (int i = 0; i < S::rows; i += P::vector) {
          const Few<T> few = *P::factors_of(weights, score_share, i, j);
#pragma unroll
          for (int e = 0; e < P::vector; ++e) {
            T& score = scores[i + e][j];  // the product of grad_y and v
            const T gradient = few.x[e] * (score - slope);
            score = is_hidden(few.x[e]) ? T(0) : gradient;
          }
        }
      }
      arrive_at<both>(weights_free);
      if (parity == 0 && has_gradients) wait_at<both>(gradients_free);
      write_factors<P>(gradients, score_share, scores);
      if (parity == 0) arrive_at<both>(gradients_full);
    }
    const T* const factors = first_group ? weights : gradients;
    for (int line = 0; line < P::others; line += P::lines) {
      const T* const stage = stream.next();
      multiply<R, P::lines, P::pitch, P::width>(sums, factors + line * P::pitch + result_share.row,
                                                stage + result_share.column);
    }
    // The first group adds even tiles to grad_q, and the second one odd tiles.
    if (parity == group) {
      if (first_group) wait_at<both>(gradients_full);
      add_to_grad_q(first, gradients);
      if (first_group) arrive_at<both>(gradients_free);
    }
    has_weights = true;
    has_gradients |= parity == 0;
  }
  if (first_group && has_weights) wait_at<both>(weights_free);
  if (!first_group && has_gradients) wait_at<both>(gradients_free);

  const T factor = first_group ? T(1) : static_cast<T>(p.scale);
  const HeadRows<T, int> output = (first_group ? p.keys_of(tensors.grad_v, p.grad_v, queries.kv)
                                               : p.keys_of(tensors.grad_k, p.grad_k, queries.kv))
                                      .in_int();
  const bool found = write_results(sums, result_share, factor, output, first_key, keys - first_key,
                                   weighted.columns, weighted.vectors, flags[group]);
  if (!__syncthreads_or((found && may_hide) || has_nan != 0)) return;
  for (int row = thread / 32; row < P::rows; row += threads / 32) {
    if (flags[group][row] == 0) continue;
    sum_visible(weighted, factor, output[first_key + row], [&](int query) {
      return weight_at(p, heads, packed, query, first_key + row, !first_group);
    });
  }
  if (has_nan == 0) return;
  for (int first = tiles.first(); tiles.has(first); first = tiles.next(first)) {
    const int end = min(first + P::others, queries.count);
    if (!is_last_for(first)) continue;
    for (int row = first + static_cast<int>(threadIdx.x) / 32; row < end; row += both / 32) {
      T* const grad_q = heads.grad_q[row];
      bool is_nan = false;
      for (int i = thread % 32; i < p.width; i += 32) is_nan |= grad_q[i] != grad_q[i];
      if (__ballot_sync(0xffffffffu, is_nan) == 0) continue;
      sum_visible(heads.k, static_cast<T>(p.scale), grad_q,
                  [&](int key) { return weight_at(p, heads, packed, row, key, true); });
    }
  }
}

/// The number of the block.
__device__ __forceinline__ int take_ticket(int* ticket) {
  __shared__ int own;
  if (threadIdx.x == 0) own = atomicAdd(ticket, 1);
  __syncthreads();
  return own;
}

template <class P>
__global__ void __launch_bounds__(2 * threads, 1)
    gradients(const __grid_constant__ Tensors<typename P::T> tensors,
              const __grid_constant__ Params p) {
  gpu::wait_for_previous_kernel();
  const int ticket = take_ticket(tensors.ticket);
  // Under a causal mask, the blocks with the most queries come first.
  const auto heads = static_cast<int>(p.batch * p.kv_heads);
  find_gradients<P>(tensors, p, false, ticket % heads, ticket / heads,
                    gpu::ceil_div(p.group() * p.queries, P::others));
}

/// The same for packed sequences, in the order of `workspace`; if
/// P::shares_kernel, also for others, if not `is_packed`.
template <class P>
__global__ void __launch_bounds__(2 * threads, 1)
    packed_gradients(const __grid_constant__ Tensors<typename P::T> tensors,
                     const __grid_constant__ Params p, const Sequences sequences,
                     std::int64_t head_semaphores, bool is_packed) {
  using OwnOfBlock = Own<Tensors<typename P::T>>;
  __shared__ __align__(16) char memory[sizeof(OwnOfBlock)];
  OwnOfBlock& own = *reinterpret_cast<OwnOfBlock*>(memory);
  gpu::wait_for_previous_kernel();
  const bool packed = !P::shares_kernel || is_packed;
  const int ticket = take_ticket(tensors.ticket);
  const auto heads = static_cast<int>(p.batch * p.kv_heads);
  if (threadIdx.x < 32) {
    PackedTile tile{0, {0, p.keys}, std::int64_t{ticket / heads} * P::rows};
    if (packed) {
      tile = find_tile<P::rows>(ticket / heads, sequences.k_ends, static_cast<int>(sequences.count),
                                p.keys);
    }
    if (threadIdx.x == 0) own.tile = tile;
  } else if (threadIdx.x < 64) {
    copy_words<32>(p, own.params, threadIdx.x - 32);
    copy_words<32>(tensors, own.tensors, threadIdx.x - 32);
  }
  __syncthreads();
  if (!own.tile.exists()) return;
  if (packed && threadIdx.x == 0) {
    const Batch& keys = own.tile.sequence;
    const bool has_queries = own.tile.number < sequences.count;
    const Batch queries =
        has_queries ? in_order(batch_of(own.tile.number, sequences.q_ends, p.queries)) : Batch{};
    own.params.queries = queries.end - queries.begin;
    own.params.keys = keys.end - keys.begin;
    Tensors<typename P::T>& to = own.tensors;
    to.grad_y += queries.begin * p.grad_y.row;
    to.q += queries.begin * p.q.row;
    to.k += keys.begin * p.k.row;
    to.v += keys.begin * p.v.row;
    to.y += queries.begin * p.y.row;
    to.grad_q += queries.begin * p.grad_q.row;
    to.grad_k += keys.begin * p.grad_k.row;
    to.grad_v += keys.begin * p.grad_v.row;
    to.lse += p.heads * queries.begin;
    to.slopes += p.heads * queries.begin;
    if (has_queries) {
      to.semaphores += slot_of<P::others>(own.tile.number, sequences.q_ends, p.queries, p.group());
    }
  }
  __syncthreads();
  find_gradients<P>(own.tensors, own.params, packed, ticket % heads,
                    static_cast<int>(own.tile.first) / P::rows, head_semaphores);
}

/// `sequences` is null if they are not packed.
std::optional<Status> run(const Call& call, const Params& p, const Sequences* sequences) {
  const std::int64_t rows = p.batch * p.heads * p.queries;
  if (rows == 0 || p.keys == 0) return std::nullopt;
  return with_tiling(p, call.inputs[0].dtype, [&]<class P>(TypeTag<P>) -> std::optional<Status> {
    using T = typename P::T;
    GradientInputs<T> in;
    if (Status status = find_inputs(call, p, sequences, in); !status.ok()) return status;
    const auto output = [&](std::size_t i) { return static_cast<T*>(call.outputs[i].data); };
    Tensors<T> tensors{
        in.grad_y,
        in.q,
        in.k,
        in.v,
        in.y,
        in.lse,
        in.grad_lse,
        output(0),
        output(1),
        output(2),
        nullptr,
        nullptr,
        nullptr,
        has_vectors<T>(p.width, {{in.q, p.q}, {in.k, p.k}, {output(1), p.grad_k}}),
        has_vectors<T>(p.value_width, {{in.grad_y, p.grad_y}, {in.v, p.v}, {output(2), p.grad_v}})};
    const std::int64_t heads = p.batch * p.kv_heads;
    const auto tiles_of = [&](std::int64_t rows, int tile) {
      return sequences == nullptr ? gpu::ceil_div(rows, tile)
                                  : tile_slots(rows, sequences->count, tile);
    };
    const std::int64_t head_semaphores = tiles_of(p.group() * p.queries, P::others);
    const std::int64_t counters = 1 + heads * head_semaphores;
    PackedWorkspace<T> workspace{};
    if (Status status = allocate(call, rows, tensors.slopes); !status.ok()) return status;
    if (Status status = allocate(call, counters, tensors.ticket); !status.ok()) return status;
    tensors.semaphores = tensors.ticket + 1;
    if (sequences != nullptr) {
      if (Status status = workspace.allocate(call, rows, sequences->count); !status.ok()) {
        return status;
      }
    }
    const auto kernel = sequences == nullptr ? prepare<T, false> : prepare<T, true>;
    const Sequences given = sequences == nullptr ? Sequences{} : *sequences;
    // A thread for each counter, and a warp for each row.
    const std::int64_t preparing = std::max(rows, gpu::ceil_div(counters, std::int64_t{32}));
    Status status =
        gpu::launch(call, kernel, grid_of(preparing), tensors, p, rows, counters, given, workspace);
    if (!status.ok()) return status;
    constexpr int bytes = static_cast<int>(sizeof(T)) *
                          (2 * P::staying_size + 3 * P::factors_size + 2 * P::ring_size);
    const std::int64_t blocks = heads * tiles_of(p.keys, P::rows);
    if constexpr (!P::shares_kernel) {
      if (sequences == nullptr) {
        return launch_blocks<gradients<P>, bytes>(call, blocks, 2, bytes, tensors, p);
      }
    }
    Sequences ordered;
    if (sequences != nullptr) {
      tensors.lse = workspace.lse;
      ordered = workspace.ordered(*sequences);
    }
    return launch_blocks<packed_gradients<P>, bytes>(call, blocks, 2, bytes, tensors, p, ordered,
                                                     head_semaphores, sequences != nullptr);
  });
}

}  // namespace

std::optional<Status> tiled_backward(const Call& call, const Params& p) {
  return run(call, p, nullptr);
}

std::optional<Status> tiled_packed_backward(const Call& call, const Params& p,
                                            const Sequences& sequences) {
  return run(call, p, &sequences);
}

}  // namespace cudarelu::ops::attention

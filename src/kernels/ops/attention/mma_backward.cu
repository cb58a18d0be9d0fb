// The gradients of attention in float16 and bfloat16, from five products of tiles, on the matrix
// instructions of warps. The method is that of FlashAttention-2.
//
// A block has a tile of keys and goes through the tiles of queries that see it. It keeps the sums
// of grad_k and grad_v in registers. A warp computes the scores of 32 keys and P::part queries,
// transposed: as it holds the weights and the gradients of the scores, they are the left factors of
// grad_v and grad_k. P::split warps that have the same keys divide the queries among them, and then
// the columns of grad_k and grad_v; they exchange the weights in shared memory.
//
// A block adds its part of grad_q to sums in float32, in global memory. For each tile of queries,
// the blocks add in the order of their keys, by semaphores, so that the result is always the same;
// the last one rounds it. Blocks also begin in this order, so that a block waits for running ones
// only; it follows the previous one at a distance of a step, and then finds its semaphores ready.
// If one tile has all keys, there is nothing to add.
//
// Of packed sequences, a block has a tile of one sequence, whose arguments it makes for itself.
#include <algorithm>
#include <limits>
#include <optional>

#include "cuda/tile/mma.cuh"
#include "cuda/tile/swizzled_matrix.cuh"
#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/workspace.h"
#include "ops/attention/arithmetic.cuh"
#include "ops/attention/engines.h"
#include "ops/attention/exact_backward.cuh"
#include "ops/attention/packed.cuh"

namespace cudarelu::ops::attention {
namespace {

using gpu::pack;
using gpu::SwizzledMatrix;

/// The shape of a block. `width` is that of q, k and v, rounded up. With `is_whole`, the tile has
/// all keys, and the block computes the slopes.
template <class T_, int width_, bool is_whole_>
struct MmaBackwardConfig {
  using T = T_;
  static constexpr int width = width_;
  static constexpr bool is_whole = is_whole_;
  static constexpr int stages = 2;
  static constexpr int keys = width == 256 ? 64 : 128;
  static constexpr int queries = 64;
  static constexpr int split = width <= 64 ? 1 : width / 64;
  static constexpr int threads = keys * split;
  static constexpr int blocks = width <= 64 ? 2 : 1;  // of a multiprocessor
  static constexpr int part = split == 4 ? 16 : 32;
  static constexpr int parts = queries / (part * split);
  static constexpr int columns = width / split;
  // A warp's part of grad_q.
  static constexpr int query_rows = width == 32 ? 16 : 32;
  static constexpr int query_warps = queries / query_rows;
  static constexpr int query_columns = width * query_warps / (threads / 32);

  using Wide = SwizzledMatrix<width>;
  using Scores = SwizzledMatrix<queries>;  // a line for each key
  // Shared memory: k and v; the gradients of scores and the weights; stages of q, grad_y, y, lse
  // and slopes; and what follows from the number of the block.
  static constexpr int keys_bytes = keys * Wide::pitch;
  static constexpr int queries_bytes = queries * Wide::pitch;
  static constexpr int scores_bytes = keys * Scores::pitch;
  static constexpr int exchange_bytes = (split == 1 ? 1 : 2) * scores_bytes;
  static constexpr int stages_at = 2 * keys_bytes + exchange_bytes;
  static constexpr int lse_at = (is_whole ? 3 : 2) * queries_bytes;
  static constexpr int slopes_at = lse_at + queries * 4;
  static constexpr int stage_bytes = slopes_at + queries * 4;
  static constexpr int header_at = stages_at + stages * stage_bytes;
  static constexpr int shared_bytes = header_at + 32;
};

template <class T>
struct Arguments {
  GradientInputs<T> in;
  T* grad_q;
  T* grad_k;
  T* grad_v;
  const float* lse;        // of queries, at a distance of `head_rows` for each head
  float* slopes;           // the same: the sums of grad_y y, less grad_lse
  float4* sums;            // of grad_q, for each tile as the threads hold them
  int* begun;              // the number of blocks that began
  int* semaphores;         // of each tile of queries: the number of blocks that have added to it
  std::int64_t head_rows;  // the queries of a head; of all sequences, if they are packed
  int head_tiles;          // the tiles of queries of a head, or the slots for them
  int queries;             // of a head
  int keys;
  int query_tiles;
  int key_tiles;       // for the kernel of packed sequences: the slots of a head
  int group;           // the heads that share k
  Divisor item_heads;  // of q, in an item of the batch
  Divisor queries_of_head;
  int width;
  int value_width;
  float scale;
  float power_scale;  // of powers of 2
  Params p;
};

/// Of a warp: 32 keys and a part of the queries; 32 keys and columns; queries and columns.
template <class P>
using ScoreSums = float[2][P::part / 8][4];
template <class P>
using KeySums = float[2][P::columns / 8][4];
template <class P>
using QuerySums = float[P::query_rows / 16][P::query_columns / 8][4];

/// Weights, or gradients of scores, rounded, as left factors of products.
template <class P>
using Factors = unsigned[P::part / 16][2][4];

template <class T>
struct alignas(16) Vector {
  T elements[8];
};

template <class T>
__device__ __forceinline__ float dot(const Vector<T>& a, const Vector<T>& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(load(a.elements[i]), load(b.elements[i]), sum);
  return sum;
}

/// The sum over neighbouring lanes.
template <int lanes>
__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int i = lanes / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffff, x, i);
  return x;
}

/// Computes the slopes of `rows` queries, and sets semaphores to zero. Of packed sequences, also
/// fills the workspace, and writes the gradients of queries without keys, which are zeros.
template <class T, bool packed>
__global__ void __launch_bounds__(256)
    find_slopes(const __grid_constant__ Arguments<T> args, std::int64_t rows, int* semaphores,
                std::int64_t number_of_semaphores, const Sequences sequences,
                const PackedWorkspace<float> workspace) {
  using V = Vector<T>;
  constexpr int lanes = 8;  // of a row
  gpu::wait_for_previous_kernel();
  if (packed && blockIdx.x == 0) {
    order_offsets<256>(sequences, args.queries, args.keys, workspace);
  }
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (thread < number_of_semaphores) semaphores[thread] = 0;
  const std::int64_t row = thread / lanes;
  const int lane = static_cast<int>(thread % lanes);
  const unsigned head = row < rows ? args.queries_of_head.quotient(static_cast<unsigned>(row)) : 0;
  const std::int64_t query = row - std::int64_t{head} * args.queries;
  float slope = 0;
  if (row < rows) {
    const unsigned item = args.item_heads.quotient(head);
    const auto vectors = [&](auto* tensor, const Layout& layout) {
      return tensor + layout.offset(item, head - item * args.item_heads.number) +
             query * layout.row;
    };
    const V* const grad_y = reinterpret_cast<const V*>(vectors(args.in.grad_y, args.p.grad_y));
    const V* const y = reinterpret_cast<const V*>(vectors(args.in.y, args.p.y));
    for (int i = lane; i < args.value_width / 8; i += lanes) slope += dot(grad_y[i], y[i]);
    if constexpr (packed) {
      const auto number = static_cast<int>(batch_number(query, sequences.q_ends, sequences.count));
      const Batch keys = keys_of(number, sequences, args.p.keys);
      V* const grad_q = reinterpret_cast<V*>(vectors(args.grad_q, args.p.grad_q));
      for (int i = lane; keys.begin == keys.end && i < args.width / 8; i += lanes) grad_q[i] = {};
    }
  }
  slope = sum_of_lanes<lanes>(slope);
  if (row < rows && lane == 0) {
    const std::int64_t offset = packed ? query * args.p.heads + head : row;
    args.slopes[row] = args.in.grad_lse == nullptr ? slope : slope - args.in.grad_lse[offset];
    if constexpr (packed) workspace.lse[row] = args.in.lse[offset];
  }
}

/// The same for the queries of a stage, which may have grad_lse instead of the slopes.
template <class P>
__device__ __forceinline__ void find_slopes_of_stage(int thread, char* stage, bool has_grad_lse) {
  using V = Vector<typename P::T>;
  constexpr int lanes = P::Wide::vectors;
  static_assert(lanes <= 32);
  const int vector = thread % lanes;
  float* const slopes = reinterpret_cast<float*>(stage + P::slopes_at);
#pragma unroll
  for (int i = 0; i < P::queries; i += P::threads / lanes) {
    const int line = i + thread / lanes;
    const char* const grad_y = stage + P::queries_bytes + P::Wide::offset(line, vector);
    const float slope =
        sum_of_lanes<lanes>(dot(*reinterpret_cast<const V*>(grad_y),
                                *reinterpret_cast<const V*>(grad_y + P::queries_bytes)));
    if (vector == 0) slopes[line] = has_grad_lse ? slope - slopes[line] : slope;
  }
}

__device__ __forceinline__ int read_semaphore(const int* semaphore) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(semaphore) : "memory");
  return value;
}

/// After it read its semaphore and before a barrier: all threads see what was written before its
/// release.
__device__ __forceinline__ void begin_turn() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// After a barrier: what the threads wrote before it is seen by the block that reads `next`.
__device__ __forceinline__ void release_semaphore(int* semaphore, int next) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(semaphore), "r"(next) : "memory");
}

/// sums += a b^T for 32 lines of a and P::part lines of b, where a and b are the lane's addresses
/// in the first 16 lines and columns.
template <class P>
__device__ __forceinline__ void multiply_lines(ScoreSums<P>& sums, unsigned a, unsigned b) {
#pragma unroll
  for (int k = 0; k < P::width / 16; ++k) {
    unsigned as[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      gpu::load_matrices<false>(as[i], (a ^ 32 * k) + i * 16 * P::Wide::pitch);
    }
#pragma unroll
    for (int j = 0; j < P::part / 16; ++j) {
      unsigned words[4];
      gpu::load_matrices<false>(words, (b ^ 32 * k) + j * 16 * P::Wide::pitch);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        gpu::multiply<typename P::T>(sums[i][2 * j], as[i], words[0], words[1]);
        gpu::multiply<typename P::T>(sums[i][2 * j + 1], as[i], words[2], words[3]);
      }
    }
  }
}

/// sums += a b for the warp's keys and columns; the depth is queries. The factors of part `own` of
/// the queries are in registers; if P::split > 1, those of all other parts are in shared memory.
template <class P>
__device__ __forceinline__ void multiply_queries(KeySums<P>& sums, const Factors<P>& factors,
                                                 int own, unsigned a, unsigned b) {
#pragma unroll
  for (int other = 0; other < P::split; ++other) {
    const int part = other == 0 ? own : (own + other) % P::split;
#pragma unroll
    for (int k = 0; k < P::part / 16; ++k) {
      unsigned as[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (other == 0) {
#pragma unroll
          for (int word = 0; word < 4; ++word) as[i][word] = factors[k][i][word];
        } else {
          const unsigned column = 2 * (P::part * part + 16 * k);
          gpu::load_matrices<false>(as[i], (a ^ column) + i * 16 * P::Scores::pitch);
        }
      }
      const unsigned lines = b + (P::part * part + 16 * k) * P::Wide::pitch;
#pragma unroll
      for (int j = 0; j < P::columns / 16; ++j) {
        unsigned words[4];
        gpu::load_matrices<true>(words, lines ^ 32 * j);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          gpu::multiply<typename P::T>(sums[i][2 * j], as[i], words[0], words[1]);
          gpu::multiply<typename P::T>(sums[i][2 * j + 1], as[i], words[2], words[3]);
        }
      }
    }
  }
}

/// sums += a^T b for the warp's queries and columns; the depth is all keys of the tile.
template <class P>
__device__ __forceinline__ void multiply_keys(QuerySums<P>& sums, unsigned a, unsigned b) {
#pragma unroll
  for (int k = 0; k < P::keys; k += 16) {
    unsigned as[P::query_rows / 16][4];
#pragma unroll
    for (int i = 0; i < P::query_rows / 16; ++i) {
      gpu::load_matrices<true>(as[i], (a ^ 32 * i) + k * P::Scores::pitch);
    }
#pragma unroll
    for (int j = 0; j < P::query_columns / 16; ++j) {
      unsigned words[4];
      gpu::load_matrices<true>(words, (b ^ 32 * j) + k * P::Wide::pitch);
#pragma unroll
      for (int i = 0; i < P::query_rows / 16; ++i) {
        gpu::multiply<typename P::T>(sums[i][2 * j], as[i], words[0], words[1]);
        gpu::multiply<typename P::T>(sums[i][2 * j + 1], as[i], words[2], words[3]);
      }
    }
  }
}

/// score = change(score, number of its query) for all scores of the lane, where `of_queries` has
/// numbers of the part's queries.
template <class P, class F>
__device__ __forceinline__ void for_each_score(int lane, const float* of_queries, const F& change) {
#pragma unroll
  for (int j = 0; j < P::part / 8; ++j) {
    const int first = 8 * j + lane % 4 * 2;
    const float2 numbers = *reinterpret_cast<const float2*>(of_queries + first);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      change(i, j, 0, numbers.x);
      change(i, j, 1, numbers.y);
      change(i, j, 2, numbers.x);
      change(i, j, 3, numbers.y);
    }
  }
}

/// The elements of the mask, times log2(e), for keys at distances of 8; the first `count` exist.
template <class T>
__device__ __forceinline__ void read_mask(const Mask& mask, std::int64_t offset, int count,
                                          float (&biases)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t at = i < count ? offset : 0;
    if (mask.is_bool) {
      biases[i] = static_cast<const std::uint8_t*>(mask.data)[at] == 0 ? low<float> : 0.0f;
    } else {
      biases[i] = exponent_of(load(static_cast<const T*>(mask.data)[at]));
    }
    offset += 8 * mask.key_stride;
  }
}

/// Multiplies scores by `scale` and adds the mask times log2(e); those of hidden keys become
/// -infinity. Returns a bit for each score: whether it is hidden. The first query of the part sees
/// `seen` of the warp's keys if causal, and is at `offset` in the mask.
template <class P>
__device__ __forceinline__ unsigned hide(int lane, ScoreSums<P>& scores, const Params& p, int seen,
                                         int keys_left, int queries_left, std::int64_t offset,
                                         float scale) {
  const int key = lane / 4;
  const int query = lane % 4 * 2;
  offset += query * p.mask.query_stride + key * p.mask.key_stride;
  unsigned hidden = 0;
#pragma unroll
  for (int j = 0; j < P::part / 4; ++j) {
    const int distance = j / 2 * 8 + j % 2;
    const int all = p.is_causal ? min(seen + query + distance, keys_left) : keys_left;
    const int left = query + distance < queries_left ? all - key : 0;
    float biases[4] = {};
    if (p.mask.data != nullptr) {
      read_mask<typename P::T>(p.mask, offset, (left + 7) / 8, biases);
      offset += (j % 2 == 0 ? 1 : 7) * p.mask.query_stride;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = scores[i / 2][j / 2][i % 2 * 2 + j % 2];
      score = fmaf(score, scale, biases[i]);
      if (8 * i >= left || biases[i] == low<float>) {
        score = low<float>;
        hidden |= 1u << (4 * j + i);
      }
    }
  }
  return hidden;
}

template <class P>
__device__ __forceinline__ void clear(ScoreSums<P>& values, unsigned hidden) {
#pragma unroll
  for (int bit = 0; bit < P::part; ++bit) {
    float& value = values[bit % 4 / 2][bit / 8][bit % 2 * 2 + bit / 4 % 2];
    if ((hidden >> bit & 1) != 0) value = 0;
  }
}

/// Writes `factor` times the sums of a warp, rows of 16 bytes at a time, to the first `left` rows,
/// which are `stride` elements apart, and `columns` columns of a matrix, from column `first` on.
template <class T, int rows, int tiles>
__device__ __forceinline__ void write(const float (&sums)[rows][tiles][4], float factor, T* to,
                                      int stride, int left, int columns, int first) {
  static_assert(tiles % 4 == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 2 * rows; ++i) {
    const int row = 8 * i + lane / 4;
#pragma unroll
    for (int j = 0; j < tiles; j += 4) {
      unsigned words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float (&own)[4] = sums[i / 2][j + k];
        words[k] = pack<T>(own[i % 2 * 2] * factor, own[i % 2 * 2 + 1] * factor);
      }
      gpu::transpose(words, threadIdx.x);
      const int column = first + 8 * (j + lane % 4);
      if (row < left && column < columns) {
        *reinterpret_cast<uint4*>(to + std::int64_t{row} * stride + column) = {words[0], words[1],
                                                                               words[2], words[3]};
      }
    }
  }
}

/// Rounds values of scores; a warp holds them as the left factor of a product.
template <class P>
__device__ __forceinline__ void round(const ScoreSums<P>& values, Factors<P>& factors) {
#pragma unroll
  for (int k = 0; k < P::part / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float (&from)[4] = values[i][2 * k + word / 2];
        factors[k][i][word] = pack<typename P::T>(from[word % 2 * 2], from[word % 2 * 2 + 1]);
      }
    }
  }
}

/// Writes factors to lines of keys in shared memory, from the lane's address of the first line on.
template <class P>
__device__ __forceinline__ void share(const Factors<P>& factors, unsigned to) {
#pragma unroll
  for (int k = 0; k < P::part / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const int line = 16 * i + word % 2 * 8;
        const unsigned at = (to ^ (32 * k + word / 2 * 16)) + line * P::Scores::pitch;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(factors[k][i][word]) : "memory");
      }
    }
  }
}

/// Keeps the compiler from computing what depends on `x` once and for all: the registers are few.
template <class... Integers>
__device__ __forceinline__ void forget(Integers&... x) {
  ([&] { asm volatile("" : "+r"(x)); }(), ...);
}

/// Sums of a tile of queries in global memory, from and to which the block goes on in vectors.
template <int rows, int tiles>
__device__ __forceinline__ void read_sums(float (&sums)[rows][tiles][4], const float4* from,
                                          int threads) {
#pragma unroll
  for (int i = 0; i < rows * tiles; ++i) {
    const float4 vector = __ldcg(from + i * threads);
    float (&to)[4] = sums[i / tiles][i % tiles];
    to[0] = vector.x;
    to[1] = vector.y;
    to[2] = vector.z;
    to[3] = vector.w;
  }
}
template <int rows, int tiles>
__device__ __forceinline__ void write_sums(const float (&sums)[rows][tiles][4], float4* to,
                                           int threads) {
#pragma unroll
  for (int i = 0; i < rows * tiles; ++i) {
    const float (&from)[4] = sums[i / tiles][i % tiles];
    __stcg(to + i * threads, make_float4(from[0], from[1], from[2], from[3]));
  }
}

/// Whether a number is NaN, or two are opposite infinities.
template <int rows, int tiles>
__device__ __forceinline__ bool may_have_nan(const float (&sums)[rows][tiles][4]) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < rows * tiles * 4; ++i) total += sums[i / 4 / tiles][i / 4 % tiles][i % 4];
  return total != total;
}

/// A tile of queries of one of the heads that share the keys.
struct TileStep {
  int tile;
  int head;

  __device__ __forceinline__ void advance(int heads) {
    if (++head == heads) {
      head = 0;
      --tile;
    }
  }
};

/// The tile of keys of a block, and the tiles of queries that it goes through.
template <class P>
struct QueryTiles {
  const Arguments<typename P::T>& args;
  int kv;  // the head of k, counted over the batch
  int key_tile;
  int steps;

  __device__ __forceinline__ QueryTiles(const Arguments<typename P::T>& args, int kv, int key_tile)
      : args(args), kv(kv), key_tile(P::is_whole ? 0 : key_tile) {
    // From the last tile of queries to the first one that sees the keys.
    const int first = args.p.is_causal ? key_tile * (P::keys / P::queries) : 0;
    steps = max(args.query_tiles - first, 0) * args.group;
  }

  __device__ __forceinline__ TileStep start() const { return {args.query_tiles - 1, 0}; }
  __device__ __forceinline__ std::int64_t first_key() const {
    return kv * args.p.keys + key_tile * P::keys;
  }
  /// The first key in a tensor like k, and the first query in one like q.
  template <class E>
  __device__ __forceinline__ E* first_key_in(E* tensor, const Layout& layout) const {
    const int item = item_of_batch();
    return tensor + layout.offset(item, kv - item * args.p.kv_heads) +
           key_tile * P::keys * layout.row;
  }
  template <class E>
  __device__ __forceinline__ E* first_query_in(E* tensor, const Layout& layout,
                                               const TileStep& step) const {
    const int item = item_of_batch();
    const int head = kv * args.group + step.head - item * args.item_heads.number;
    return tensor + layout.offset(item, head) + step.tile * P::queries * layout.row;
  }
  __device__ __forceinline__ int item_of_batch() const {
    return static_cast<int>(args.item_heads.quotient(static_cast<unsigned>(kv * args.group)));
  }
  __device__ __forceinline__ int keys_left() const {
    return min(args.keys - key_tile * P::keys, P::keys);
  }
  __device__ __forceinline__ std::int64_t first_query(const TileStep& step) const {
    return (std::int64_t{kv} * args.group + step.head) * args.p.queries + step.tile * P::queries;
  }
  /// Of the first query, in lse and in the slopes.
  __device__ __forceinline__ std::int64_t offset_of_numbers(const TileStep& step) const {
    return (std::int64_t{kv} * args.group + step.head) * args.head_rows + step.tile * P::queries;
  }
  __device__ __forceinline__ int queries_left(const TileStep& step) const {
    return min(args.queries - step.tile * P::queries, P::queries);
  }
  /// Whether no later tile of keys is seen.
  __device__ __forceinline__ bool is_last(const TileStep& step) const {
    const int last = args.key_tiles - 1;
    if (P::is_whole || !args.p.is_causal) return key_tile == last;
    return key_tile == min(last, (step.tile * P::queries + P::queries - 1) / P::keys);
  }
};

/// What a block keeps in shared memory.
struct Header {
  std::int64_t offset;  // in the mask, of the first query and key of the first head
  int kv;               // of QueryTiles
  int key_tile;
  bool may_have_nan;  // a result that is known
};

/// Computes those of `count` rows of grad_q with NaN again. `row` is the number of the first one.
template <class T>
__device__ __noinline__ void repair_queries(const Arguments<T>& args, std::int64_t row,
                                            const T* grad_q, int count) {
  const Params& p = args.p;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < count;
       i += static_cast<int>(blockDim.x) / 32) {
    if (has_nan(grad_q + i * p.grad_q.row, p.width)) {
      write_gradient_of_query(p, args.in, row + i, args.grad_q);
    }
  }
}

/// The same for rows of grad_k and grad_v.
template <class T>
__device__ __noinline__ void repair_keys(const Arguments<T>& args, std::int64_t row,
                                         const T* grad_k, const T* grad_v, int count) {
  const Params& p = args.p;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < count;
       i += static_cast<int>(blockDim.x) / 32) {
    if (has_nan(grad_k + i * p.grad_k.row, p.width) ||
        has_nan(grad_v + i * p.grad_v.row, p.value_width)) {
      write_gradients_of_key(p, args.in, row + i, args.grad_k, args.grad_v);
    }
  }
}

/// Computes rows of the block with NaN again.
template <class P>
__device__ __noinline__ void repair(const Arguments<typename P::T>& args, const Header& header) {
  const QueryTiles<P> range(args, header.kv, header.key_tile);
  const Params& p = args.p;
  TileStep at = range.start();
  for (int step = 0; step < range.steps; ++step, at.advance(args.group)) {
    if (!range.is_last(at)) continue;
    repair_queries(args, range.first_query(at), range.first_query_in(args.grad_q, p.grad_q, at),
                   range.queries_left(at));
  }
  repair_keys(args, range.first_key(), range.first_key_in(args.grad_k, p.grad_k),
              range.first_key_in(args.grad_v, p.grad_v), range.keys_left());
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// The work of a block whose tile is in `header`.
template <class P>
__device__ __forceinline__ void find_gradients_of_keys(const Arguments<typename P::T>& args,
                                                       char* shared, Header& header) {
  using T = typename P::T;
  using Wide = typename P::Wide;
  using Scores = typename P::Scores;
  const Params& p = args.p;
  const auto base = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  constexpr int exchange = 2 * P::keys_bytes;
  int thread = static_cast<int>(threadIdx.x);

  QueryTiles<P> range(args, header.kv, header.key_tile);
  Wide::template copy<P::keys, P::threads>(thread, shared, range.first_key_in(args.in.k, p.k),
                                           static_cast<int>(p.k.row), range.keys_left(),
                                           args.width);
  Wide::template copy<P::keys, P::threads>(
      thread, shared + P::keys_bytes, range.first_key_in(args.in.v, p.v), static_cast<int>(p.v.row),
      range.keys_left(), args.value_width);
  const auto fetch = [&](int step, const TileStep& next) {
    if (step < range.steps) {
      char* const to = shared + P::stages_at + step % P::stages * P::stage_bytes;
      const std::int64_t row = range.offset_of_numbers(next);
      const int left = range.queries_left(next);
      const auto copy = [&](int at, const T* matrix, const Layout& layout, int columns) {
        Wide::template copy<P::queries, P::threads>(thread, to + at,
                                                    range.first_query_in(matrix, layout, next),
                                                    static_cast<int>(layout.row), left, columns);
      };
      copy(0, args.in.q, p.q, args.width);
      copy(P::queries_bytes, args.in.grad_y, p.grad_y, args.value_width);
      if constexpr (P::is_whole) copy(2 * P::queries_bytes, args.in.y, p.y, args.value_width);
      static_assert(2 * P::queries <= P::threads);
      const int own = thread % P::queries;
      const float* const slopes = P::is_whole ? args.in.grad_lse : args.slopes;
      if (thread < P::queries) {
        gpu::copy_async<4>(to + P::lse_at + 4 * own, args.lse + row + own, own < left);
      } else if (slopes != nullptr && thread < 2 * P::queries) {
        gpu::copy_async<4>(to + P::slopes_at + 4 * own, slopes + row + own, own < left);
      }
    }
    gpu::commit_copies();
  };
  fetch(0, range.start());

  KeySums<P> key_sums = {};
  KeySums<P> value_sums = {};
  int tile_to_end = -1;  // whose sums this block has written in the last step
  const auto end_last_turn = [&] {
    if (!P::is_whole && thread == 0 && tile_to_end >= 0) {
      release_semaphore(args.semaphores + tile_to_end, range.key_tile + 1);
    }
  };
  TileStep at = range.start();
  for (int step = 0; step < range.steps; ++step, at.advance(args.group)) {
    gpu::wait_for_copies<0>();
    __syncthreads();
    end_last_turn();
    TileStep next = at;
    next.advance(args.group);
    fetch(step + 1, next);
    forget(thread, range.kv, range.key_tile);
    const int lane = thread % 32;
    const int member = thread / 32 % P::split;
    const int warp_keys = thread / 32 / P::split * 32;
    const int stage = P::stages_at + step % P::stages * P::stage_bytes;
    if constexpr (P::is_whole) {
      find_slopes_of_stage<P>(thread, shared + stage, args.in.grad_lse != nullptr);
      __syncthreads();
    }
    const int tile = (range.kv * args.group + at.head) * args.head_tiles + at.tile;
    const bool waits = !P::is_whole && range.key_tile > 0 && thread == P::threads - 1;
    int semaphore = 0;
    if (waits) semaphore = read_semaphore(args.semaphores + tile);
    const auto sums = [&] {
      return args.sums + std::int64_t{tile} * (P::queries * P::width / 4) + thread;
    };
#pragma unroll 1
    for (int i = 0; i < P::parts; ++i) {
      const int part = member + i;
      const unsigned own_keys =
          base + Wide::template offset_of_lane<true>(lane) + warp_keys * Wide::pitch;
      const unsigned lines =
          base + stage + Wide::template offset_of_lane<false>(lane) + part * P::part * Wide::pitch;
      const float* const lse =
          reinterpret_cast<const float*>(shared + stage + P::lse_at) + part * P::part;
      const float* const slopes = lse + P::queries;
      ScoreSums<P> weights = {};
      multiply_lines<P>(weights, own_keys, lines);
      unsigned hidden = 0;
      float factor = args.power_scale;
      if (p.mask.data != nullptr || range.keys_left() < P::keys ||
          range.queries_left(at) < P::queries ||
          (p.is_causal && (range.key_tile + 1) * P::keys > at.tile * P::queries)) {
        const int query = at.tile * P::queries + part * P::part;
        const int key = range.key_tile * P::keys + warp_keys;
        const std::int64_t offset = header.offset + at.head * p.mask.head_stride +
                                    query * p.mask.query_stride + key * p.mask.key_stride;
        hidden = hide<P>(lane, weights, p, query + 1 - key, range.keys_left() - warp_keys,
                         range.queries_left(at) - part * P::part, offset, args.power_scale);
        factor = 1;
      }
      ScoreSums<P> grads = {};
      multiply_lines<P>(grads, own_keys + P::keys_bytes, lines + P::queries_bytes);
      for_each_score<P>(lane, lse, [&](int i, int j, int k, float of_query) {
        const float base = of_query == low<float> ? 0 : -exponent_of(of_query);
        weights[i][j][k] = power_of_two(fmaf(weights[i][j][k], factor, base));
      });
      for_each_score<P>(lane, slopes, [&](int i, int j, int k, float slope) {
        grads[i][j][k] = weights[i][j][k] * (grads[i][j][k] - slope);
      });
      if (hidden != 0) clear<P>(grads, hidden);
      Factors<P> weight_factors;
      Factors<P> grad_factors;
      round<P>(weights, weight_factors);
      round<P>(grads, grad_factors);
      const unsigned own_scores = base + exchange + warp_keys * Scores::pitch;
      const unsigned to =
          (own_scores + Scores::offset(lane / 4, 0) + lane % 4 * 4) ^ 2 * P::part * part;
      share<P>(grad_factors, to);
      if constexpr (P::split > 1) share<P>(weight_factors, to + P::scores_bytes);
      if (i == P::parts - 1) {
        if (waits) {
          while (semaphore < range.key_tile) semaphore = read_semaphore(args.semaphores + tile);
          begin_turn();
        }
        __syncthreads();
      }
      const unsigned factors = own_scores + Scores::template offset_of_lane<true>(lane);
      const unsigned columns =
          (base + stage + Wide::template offset_of_lane<true>(lane)) ^ 2 * P::columns * member;
      multiply_queries<P>(value_sums, weight_factors, part, factors + P::scores_bytes,
                          columns + P::queries_bytes);
      multiply_queries<P>(key_sums, grad_factors, part, factors, columns);
    }
    QuerySums<P> query_sums = {};
    if (!P::is_whole && range.key_tile > 0) read_sums(query_sums, sums(), P::threads);
    const int query_row = thread / 32 % P::query_warps * P::query_rows;
    const int query_column = thread / 32 / P::query_warps * P::query_columns;
    multiply_keys<P>(
        query_sums,
        (base + exchange + Scores::template offset_of_lane<false>(lane)) ^ 2 * query_row,
        (base + Wide::template offset_of_lane<true>(lane)) ^ 2 * query_column);
    if (range.is_last(at)) {
      write<T>(query_sums, args.scale,
               range.first_query_in(args.grad_q, p.grad_q, at) + query_row * p.grad_q.row,
               static_cast<int>(p.grad_q.row), range.queries_left(at) - query_row, args.width,
               query_column);
      if (may_have_nan(query_sums)) header.may_have_nan = true;
      tile_to_end = -1;
    } else {
      write_sums(query_sums, sums(), P::threads);
      tile_to_end = tile;
    }
  }
  const int member = thread / 32 % P::split;
  const int warp_keys = thread / 32 / P::split * 32;
  const int own_left = range.keys_left() - warp_keys;
  write<T>(key_sums, args.scale,
           range.first_key_in(args.grad_k, p.grad_k) + warp_keys * p.grad_k.row,
           static_cast<int>(p.grad_k.row), own_left, args.width, member * P::columns);
  write<T>(value_sums, 1, range.first_key_in(args.grad_v, p.grad_v) + warp_keys * p.grad_v.row,
           static_cast<int>(p.grad_v.row), own_left, args.value_width, member * P::columns);
  if (may_have_nan(key_sums) || may_have_nan(value_sums)) header.may_have_nan = true;
  __syncthreads();
  end_last_turn();

  if (header.may_have_nan && (p.mask.data != nullptr || p.is_causal)) {
    repair<P>(args, header);
  }
}

#endif

/// Whether sequences that are not packed have a kernel of their own in the code for an
/// architecture. On 9.0, sm90_backward() takes most of their calls, and the others share the
/// kernel of packed sequences.
template <class P>
constexpr bool has_own_kernel(int architecture) {
  return P::is_whole || architecture != 90;
}

template <class T>
__device__ void find_mask_offset(Header& header, const Arguments<T>& args) {
  const Params& p = args.p;
  if (p.mask.data == nullptr) return;
  const int kv = header.kv;
  header.offset = mask_offset(p.mask, kv / p.kv_heads, kv % p.kv_heads * args.group);
}

template <class P>
__device__ __forceinline__ void find_gradients_of_block(const Arguments<typename P::T>& args) {
  extern __shared__ __align__(512) char shared[];
  Header& header = *reinterpret_cast<Header*>(shared + P::header_at);
  gpu::wait_for_previous_kernel();
  if (threadIdx.x == 0) {
    const int number = P::is_whole ? static_cast<int>(blockIdx.x) : atomicAdd(args.begun, 1);
    const int kv = P::is_whole ? number : number / args.key_tiles;
    header.kv = kv;
    header.key_tile = number - kv * args.key_tiles;
    header.may_have_nan = false;
    find_mask_offset(header, args);
  }
  __syncthreads();
  find_gradients_of_keys<P>(args, shared, header);
}

template <class P>
__global__ void __launch_bounds__(P::threads, P::blocks)
    find_gradients(const __grid_constant__ Arguments<typename P::T> args) {
#if __CUDA_ARCH__ >= 800
  if constexpr (has_own_kernel<P>(__CUDA_ARCH__ / 10)) find_gradients_of_block<P>(args);
#endif
}

/// The same for packed sequences, or for others if not `packed`.
template <class P>
__global__ void __launch_bounds__(P::threads, P::blocks)
    find_packed_gradients(const __grid_constant__ Arguments<typename P::T> args,
                          const __grid_constant__ Sequences sequences, bool packed) {
#if __CUDA_ARCH__ >= 800
  using Own = Arguments<typename P::T>;
  extern __shared__ __align__(512) char shared[];
  __shared__ __align__(16) char memory[sizeof(Own)];
  __shared__ bool exists;
  Header& header = *reinterpret_cast<Header*>(shared + P::header_at);
  Own& own = *reinterpret_cast<Own*>(memory);
  gpu::wait_for_previous_kernel();
  PackedTile tile{};
  if (threadIdx.x < 32) {
    const int begun = threadIdx.x == 0 ? atomicAdd(args.begun, 1) : 0;
    const int number = __shfl_sync(~0u, begun, 0);
    const int kv = number / args.key_tiles;
    const int slot = number - kv * args.key_tiles;
    if (packed) {
      tile = find_tile<P::keys>(slot, sequences.k_ends, static_cast<int>(sequences.count),
                                args.p.keys);
    }
    if (threadIdx.x == 0) {
      exists = !packed || tile.exists();
      header.kv = kv;
      header.key_tile = packed ? static_cast<int>(tile.first) / P::keys : slot;
      header.may_have_nan = false;
      if (!packed) find_mask_offset(header, args);
    }
  } else {
    copy_words<P::threads - 32>(args, own, threadIdx.x - 32);
  }
  __syncthreads();
  if (!exists) return;
  if (packed && threadIdx.x == 0) {
    const Batch keys = tile.sequence;
    const bool has_queries = tile.number < sequences.count;
    const Batch queries =
        has_queries ? in_order(batch_of(tile.number, sequences.q_ends, args.p.queries)) : Batch{};
    const std::int64_t slot =
        has_queries ? slot_of<P::queries>(tile.number, sequences.q_ends, args.p.queries) : 0;
    Params& p = own.p;
    p.queries = queries.end - queries.begin;
    p.keys = keys.end - keys.begin;
    own.queries = static_cast<int>(p.queries);
    own.keys = static_cast<int>(p.keys);
    own.query_tiles = (own.queries + P::queries - 1) / P::queries;
    own.key_tiles = (own.keys + P::keys - 1) / P::keys;
    own.lse += queries.begin;
    own.slopes += queries.begin;
    own.semaphores += slot;
    own.sums += slot * (P::queries * P::width / 4);
    own.in.grad_y += queries.begin * p.grad_y.row;
    own.in.q += queries.begin * p.q.row;
    own.in.k += keys.begin * p.k.row;
    own.in.v += keys.begin * p.v.row;
    own.in.y += queries.begin * p.y.row;
    own.in.lse += queries.begin * p.lse.row;
    if (own.in.grad_lse != nullptr) own.in.grad_lse += queries.begin * p.lse.row;
    own.grad_q += queries.begin * p.grad_q.row;
    own.grad_k += keys.begin * p.grad_k.row;
    own.grad_v += keys.begin * p.grad_v.row;
  }
  __syncthreads();
  find_gradients_of_keys<P>(own, shared, header);
#endif
}

/// The gradients by tilings of one width. Returns nothing if the device lacks shared memory.
template <class P>
std::optional<Status> launch_tiles(const Call& call, const Params& p, const Sequences* sequences) {
  using T = typename P::T;
  const int device = call.execution.device_index;
  const bool shares_kernel =
      sequences != nullptr || !has_own_kernel<P>(gpu::compiled_architecture(device));
  const int own_arguments = shares_kernel ? static_cast<int>(sizeof(Arguments<T>)) + 16 : 0;
  if (gpu::number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device) <
      P::shared_bytes + own_arguments) {
    return {};
  }
  const auto output = [&](std::size_t i) { return static_cast<T*>(call.outputs[i].data); };
  const auto tiles_of = [&](std::int64_t rows, int tile) {
    return sequences == nullptr ? gpu::ceil_div(rows, tile)
                                : tile_slots(rows, sequences->count, tile);
  };
  const std::int64_t key_tiles = tiles_of(p.keys, P::keys);
  const std::int64_t query_tiles = tiles_of(p.queries, P::queries);
  const GradientInputs<T> in = gradient_inputs<T>(call, sequences == nullptr ? 6 : 7);
  Arguments<T> args{.in = in,
                    .grad_q = output(0),
                    .grad_k = output(1),
                    .grad_v = output(2),
                    .lse = in.lse,
                    .slopes = nullptr,
                    .sums = nullptr,
                    .begun = nullptr,
                    .semaphores = nullptr,
                    .head_rows = p.queries,
                    .head_tiles = static_cast<int>(query_tiles),
                    .queries = static_cast<int>(p.queries),
                    .keys = static_cast<int>(p.keys),
                    .query_tiles = static_cast<int>(query_tiles),
                    .key_tiles = static_cast<int>(key_tiles),
                    .group = static_cast<int>(p.group()),
                    .item_heads = Divisor(static_cast<int>(p.heads)),
                    .queries_of_head = Divisor(static_cast<int>(p.queries)),
                    .width = static_cast<int>(p.width),
                    .value_width = static_cast<int>(p.value_width),
                    .scale = static_cast<float>(p.scale),
                    .power_scale = static_cast<float>(p.scale) * log2_e,
                    .p = p};
  Sequences ordered;
  if constexpr (!P::is_whole) {
    const std::int64_t rows = p.batch * p.heads * p.queries;
    const std::int64_t tiles = p.batch * p.heads * query_tiles;
    const std::int64_t sums = key_tiles == 1 ? 0 : tiles * P::queries * P::width / 4;
    PackedWorkspace<float> workspace{};
    if (Status status = allocate(call, rows, args.slopes); !status.ok()) return status;
    if (Status status = allocate(call, 1 + tiles, args.begun); !status.ok()) return status;
    if (Status status = allocate(call, sums, args.sums); !status.ok()) return status;
    if (sequences != nullptr) {
      if (Status status = workspace.allocate(call, rows, sequences->count); !status.ok()) {
        return status;
      }
      args.lse = workspace.lse;
    }
    args.semaphores = args.begun + 1;
    const auto kernel = sequences == nullptr ? find_slopes<T, false> : find_slopes<T, true>;
    const unsigned blocks = gpu::blocks_for(std::max(8 * rows, 1 + tiles), 256);
    Status status = gpu::launch(call, kernel, {blocks, 256}, args, rows, args.begun, 1 + tiles,
                                sequences == nullptr ? Sequences{} : *sequences, workspace);
    if (!status.ok()) return status;
    if (sequences != nullptr) ordered = workspace.ordered(*sequences);
  }
  const auto start = [&]<auto kernel>(const auto&... arguments) {
    Status status = gpu::allow_shared_memory<kernel>(call, P::shared_bytes);
    if (!status.ok()) return status;
    const auto blocks = static_cast<unsigned>(p.batch * p.kv_heads * key_tiles);
    return gpu::launch(call, kernel, {blocks, P::threads, P::shared_bytes}, arguments...);
  };
  if constexpr (!P::is_whole) {
    if (shares_kernel) {
      return start.template operator()<find_packed_gradients<P>>(args, ordered,
                                                                 sequences != nullptr);
    }
  }
  return start.template operator()<find_gradients<P>>(args);
}

template <class T>
std::optional<Status> launch_type(const Call& call, const Params& p, const Sequences* sequences) {
  const std::int64_t width = std::max(p.width, p.value_width);
  if (sequences == nullptr && width <= 64 && p.keys <= 128) {
    if (width <= 32) return launch_tiles<MmaBackwardConfig<T, 32, true>>(call, p, sequences);
    return launch_tiles<MmaBackwardConfig<T, 64, true>>(call, p, sequences);
  }
  if (width <= 32) return launch_tiles<MmaBackwardConfig<T, 32, false>>(call, p, sequences);
  if (width <= 64) return launch_tiles<MmaBackwardConfig<T, 64, false>>(call, p, sequences);
  if (width <= 128) return launch_tiles<MmaBackwardConfig<T, 128, false>>(call, p, sequences);
  return launch_tiles<MmaBackwardConfig<T, 256, false>>(call, p, sequences);
}

/// `sequences` is null if they are not packed.
std::optional<Status> run(const Call& call, const Params& p, const Sequences* sequences) {
  constexpr std::int64_t most = std::numeric_limits<int>::max() / 2;
  if (!gpu::is_compiled_for(80, call.execution.device_index)) return {};
  for (const std::int64_t width : {p.width, p.value_width}) {
    if (width == 0 || width > 256 || width % 8 != 0) return {};
  }
  const std::int64_t pairs = p.batch * p.heads;
  if (pairs == 0 || p.queries == 0 || p.keys == 0) return {};
  if (pairs > most / p.queries) return {};
  for (const Layout& layout : {p.q, p.k, p.v, p.y, p.grad_y, p.grad_q, p.grad_k, p.grad_v}) {
    if (!has_vectors<Half>(layout)) return {};
  }
  const std::int64_t sequence_count = sequences == nullptr ? 0 : sequences->count;
  if (sequence_count > most) return {};
  const std::int64_t longest = std::max(p.queries, p.keys) + 64 * (sequence_count + 1);
  if (longest > most || pairs > most / gpu::ceil_div(longest, 64)) return {};
  std::uintptr_t misalignment = 0;
  for (const TensorView& x : call.inputs.first(5)) misalignment |= gpu::misalignment(x.data);
  for (const TensorView& x : call.outputs) misalignment |= gpu::misalignment(x.data);
  if (misalignment != 0) return {};
  if (call.inputs[0].dtype == DType::float16) return launch_type<Half>(call, p, sequences);
  if (call.inputs[0].dtype == DType::bfloat16) return launch_type<BFloat16>(call, p, sequences);
  return {};
}

}  // namespace

std::optional<Status> mma_backward(const Call& call, const Params& p) {
  return run(call, p, nullptr);
}

std::optional<Status> mma_packed_backward(const Call& call, const Params& p,
                                          const Sequences& sequences) {
  return run(call, p, &sequences);
}

}  // namespace cudarelu::ops::attention

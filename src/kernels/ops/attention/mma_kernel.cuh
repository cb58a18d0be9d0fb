// Attention of float16 and bfloat16 with the matrix instructions of warps, after FlashAttention-2
// (Dao, 2023). A block has a tile of rows of q. Tiles of keys and values pass through a ring of
// stages in shared memory. Each warp computes the scores of its rows, raises 2 to them, and
// multiplies these weights with the values; the scores stay in registers, whose distribution as a
// result of the matrix instruction is also that of its left operand.
//
// Weights are relative to a base, which is raised, and the sums scaled, only when a score is more
// than 2^8 times larger: float32 can hold that, and after the first tiles it is rare.
//
// A hidden key has the weight 0, so that NaN or infinity in its value makes NaN. Rows that have NaN
// in the end are computed again by attend_row(), which reads visible keys only.
//
// Of packed sequences, a block has a tile of one sequence, whose arguments it makes for itself.
#pragma once

#include <climits>

#include "cuda/tile/mma.cuh"
#include "cuda/tile/swizzled_matrix.cuh"
#include "cudarelu/detail/cuda/async_copy.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/types.h"
#include "ops/attention/arithmetic.cuh"
#include "ops/attention/cuda.cuh"
#include "ops/attention/packed.cuh"

namespace cudarelu::ops::attention::mma {

using gpu::pack;
using gpu::swizzled;

/// How a block works. `row_warps` warps have 16 * `row_tiles` rows each. `key_warps` such sets of
/// warps divide the keys of each tile and add their results in the end, for few rows.
template <int width_, int row_tiles_, int row_warps_, int key_warps_, int keys_, int stages_,
          int blocks_>
struct MmaConfig {
  static constexpr int width = width_;  // of keys and values, which zeros fill up
  static constexpr int row_tiles = row_tiles_;
  static constexpr int row_warps = row_warps_;
  static constexpr int key_warps = key_warps_;
  static constexpr int keys = keys_;  // of a tile
  static constexpr int stages = stages_;
  static constexpr int blocks = blocks_;  // on a multiprocessor

  static constexpr int warp_rows = 16 * row_tiles;
  static constexpr int rows = warp_rows * row_warps;
  static constexpr int warp_keys = keys / key_warps;
  static constexpr int threads = 32 * row_warps * key_warps;
  static constexpr int line = 2 * width;           // bytes of a row
  static constexpr int vectors = width / 8;        // of a row
  static constexpr int lines = threads / vectors;  // copied at a time
  static constexpr int tile_bytes = keys * line;
  static constexpr int stage_bytes = 2 * tile_bytes;
  static constexpr int query_bytes = rows * line;
  static constexpr int shared_bytes = query_bytes + stages * stage_bytes;
  static constexpr bool takes_mask = row_tiles == 1 && width > 32;
  // Else each tile of keys loads the queries from shared memory again.
  static constexpr bool keeps_queries = row_tiles * width <= 128 || key_warps > 1;
  static_assert(width % 32 == 0 && warp_keys % 16 == 0 && threads % vectors == 0);
  static_assert(key_warps == 1 || (row_warps == 1 && row_tiles == 1));
};

/// Whether the code for an architecture has a configuration for sequences that are not packed.
/// On 9.0, sm90_forward() takes most calls with the many rows for which large tiles pay.
template <class P>
constexpr bool has_config(int architecture) {
  return P::row_tiles == 1 || architecture != 90;
}

/// The results of parts of the keys, for each row and each part.
struct Parts {
  /// The base, as an exponent of 2, -infinity if no key is visible, and the sum of the weights.
  struct Scale {
    float base;
    float total;
  };
  Divisor count;  // of parts; if it is 1, there are no others of these
  Scale* scales;  // [rows, count]
  float* sums;    // [rows, count, e]
};

/// Rows of q that share a head of k are cut into tiles together: a stack. It has the queries of one
/// head of q or, if they are few and their order has no effect, those of all heads that share one
/// of k.
struct Arguments {
  const void* q;
  const void* k;
  const void* v;
  void* y;
  float* lse;  // or null
  Params params;
  Parts parts;
  int rows;            // of a stack
  int heads;           // of a stack
  Divisor tiles;       // of a stack
  Divisor stacks;      // that share a head of k
  Divisor queries;     // of a head
  Divisor item_heads;  // of q, in an item of the batch
  int tiles_of_part;   // tiles of keys
  float factor;        // from products to exponents of 2
  bool mask_in_pairs;  // the mask can be read two keys at a time
};

/// What a block has of packed sequences: the arguments of its sequence, and its tile.
struct PackedArguments : Arguments {
  unsigned stack;
  int first_row;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// 1 / x for a normal x.
__device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Adds a pair to another.
template <class T>
__device__ __forceinline__ void add_pair(unsigned& sum, unsigned pair) {
  if constexpr (std::is_same_v<T, Half>) {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0x3c003c00));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0x3f803f80));
  }
}

template <class T>
__device__ __forceinline__ bool has_nan(unsigned pair) {
  const float low = load(T{static_cast<std::uint16_t>(pair)});
  const float high = load(T{static_cast<std::uint16_t>(pair >> 16)});
  return low != low || high != high;
}

template <class T, bool hides_low = true>
__device__ void attend_again(const Arguments& args, std::int64_t row) {
  attend_row<hides_low>(static_cast<const T*>(args.q), static_cast<const T*>(args.k),
                        static_cast<const T*>(args.v), static_cast<T*>(args.y), args.lse,
                        args.params, row);
}

/// The same number, from which the compiler cannot compute anything before a loop, to keep it in a
/// register.
__device__ __forceinline__ unsigned in_loop(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ unsigned lane_of() { return threadIdx.x % 32; }

/// A thread's share of the copies of a matrix.
template <class T, class P>
class Copies {
 public:
  /// From the row at `first` on.
  __device__ __forceinline__ Copies(const T* first, int stride)
      : from_(first + (std::int64_t{row()} * stride + column())) {}

  /// Starts the copy of the next `rows` rows, of which `left` exist, with zeros for the others.
  template <int rows>
  __device__ __forceinline__ void start(char* to, int left, int width, int stride) {
    const unsigned at = swizzled<P::line>(in_loop(row()), threadIdx.x % P::vectors);
    left = static_cast<int>(column()) < width ? left - static_cast<int>(row()) : 0;
    stride = static_cast<int>(in_loop(static_cast<unsigned>(stride)));
    static_assert(P::lines % 8 == 0 || P::vectors >= 8);
#pragma unroll
    for (int i = 0; i < rows; i += P::lines) {
      if (rows < P::lines && row() >= rows) break;
      gpu::copy_async<16>(to + (at ^ i % 8 * 16) + i * P::line, from_, i < left);
      from_ += std::int64_t{P::lines} * stride;
    }
  }

  /// The same for rows from row `first` on of matrix[row].
  template <int rows, class Matrix>
  __device__ __forceinline__ static void start(char* to, const Matrix& matrix, int first, int left,
                                               int width) {
    const unsigned at = swizzled<P::line>(row(), threadIdx.x % P::vectors);
    left = static_cast<int>(column()) < width ? left - static_cast<int>(row()) : 0;
#pragma unroll
    for (int i = 0; i < rows; i += P::lines) {
      if (rows < P::lines && row() >= rows) break;
      const T* const from = matrix(first + i + static_cast<int>(row())) + column();
      gpu::copy_async<16>(to + (at ^ i % 8 * 16) + i * P::line, from, i < left);
    }
  }

 private:
  __device__ static unsigned row() { return threadIdx.x / P::vectors; }
  __device__ static unsigned column() { return threadIdx.x % P::vectors * 8; }

  const T* from_;
};

/// What one thread knows. As a result of the matrix instruction, the values [2 * half] and
/// [2 * half + 1] of 16 by 8 elements are in row lane / 4 + 8 * half and columns 2 * (lane % 4) and
/// the next. The arguments are Arguments or PackedArguments.
template <class T, class P, class Args, bool masked>
class Kernel {
 public:
  __device__ __forceinline__ explicit Kernel(const Args& args) : args_(args) {
    const Params& p = args.params;
#pragma unroll
    for (float& base : bases_) base = low<float>;
    find_tile();
    const auto keys = static_cast<int>(p.keys);
    const int end = min(first_row_ + P::rows, args.rows);
    const int visible = p.is_causal ? min(keys, end) : keys;
    tile_ = static_cast<int>(part_) * args.tiles_of_part;
    last_tile_ = min(tile_ + args.tiles_of_part, (visible + P::keys - 1) / P::keys);
  }

  __device__ __forceinline__ void run() {
    const Params& p = args_.params;
    const auto width = static_cast<int>(p.width);
    const auto value_width = static_cast<int>(p.value_width);
    const auto key_stride = static_cast<int>(p.k.row);
    const auto value_stride = static_cast<int>(p.v.row);
    {
      const T* const q = of_stack(static_cast<const T*>(args_.q), p.q);
      Copies<T, P>::template start<P::rows>(
          shared(), [&](int row) { return q + offset_in_stack(row, p.q); }, first_row_,
          args_.rows - first_row_, width);
    }
    const unsigned kv = args_.stacks.quotient(stack_);  // counted over the batch
    const unsigned item = item_of_stack();
    const auto first_key = [&](const void* data, const Layout& layout) {
      return static_cast<const T*>(data) + layout.offset(item, kv - item * p.kv_heads) +
             std::int64_t{tile_} * P::keys * layout.row;
    };
    Copies<T, P> k(first_key(args_.k, p.k), key_stride);
    Copies<T, P> v(first_key(args_.v, p.v), value_stride);
    const auto fetch = [&](int tile, int stage) {
      if (tile < last_tile_) {
        char* const to = shared() + P::query_bytes + stage * P::stage_bytes;
        const int left = static_cast<int>(p.keys) - tile * P::keys;
        k.template start<P::keys>(to, left, width, key_stride);
        v.template start<P::keys>(to + P::tile_bytes, left, value_width, value_stride);
      }
      gpu::commit_copies();
    };
#pragma unroll
    for (int stage = 0; stage < P::stages; ++stage) fetch(tile_ + stage, stage);
    if constexpr (masked) find_mask();
    gpu::wait_for_copies<P::stages - 1>();
    __syncthreads();
    if constexpr (P::keeps_queries) {
#pragma unroll
      for (int step = 0; step < steps; ++step) load_queries(queries_[step], step);
    }
    int stage = 0;
    while (tile_ < last_tile_) {
      const int key = tile_ * P::keys + static_cast<int>(key_warp()) * P::warp_keys;
      if (key < largest_limit()) add_tile(stage, key);
      if (++tile_ == last_tile_) break;
      gpu::wait_for_copies<P::stages - 2>();
      __syncthreads();
      fetch(tile_ + P::stages - 1, stage);
      stage = stage + 1 == P::stages ? 0 : stage + 1;
    }
#pragma unroll
    for (int r = 0; r < own_rows; ++r) totals_[r] = gpu::sum_in_warp<4>(totals_[r]);
    if constexpr (P::key_warps > 1) {
      add_warps();
      if (key_warp() > 0) return;
    }
    find_tile();
    if (args_.parts.count.number > 1) {
      write_part();
    } else {
      write();
    }
  }

 private:
  static constexpr bool packed = std::is_same_v<Args, PackedArguments>;
  static constexpr int own_rows = 2 * P::row_tiles;  // of a thread
  static constexpr int steps = P::width / 16;        // of the matrix instruction
  static constexpr int columns = P::width / 8;       // in units of 8
  static constexpr int keys = P::warp_keys / 8;      // in units of 8

  /// Finds the block's tile. The number of the block is read again each time, so that the compiler
  /// does not keep its position in registers.
  __device__ __forceinline__ void find_tile() {
    if constexpr (packed) {
      stack_ = in_loop(args_.stack);
      part_ = 0;
      first_row_ = static_cast<int>(in_loop(static_cast<unsigned>(args_.first_row)));
    } else {
      find_tile_of_block();
    }
  }
  __device__ __forceinline__ void find_tile_of_block() {
    unsigned block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const unsigned group = args_.tiles.quotient(block);
    stack_ = args_.parts.count.quotient(group);
    part_ = group - stack_ * args_.parts.count.number;
    // Causal: the tiles with most visible keys start first.
    const unsigned tile = args_.tiles.number * (group + 1) - 1 - block;
    first_row_ = static_cast<int>(tile) * P::rows;
  }

  /// Of the batch.
  __device__ __forceinline__ unsigned item_of_stack() const {
    return args_.item_heads.quotient(stack_ * args_.heads);
  }

  /// The first row of the stack in a tensor like q.
  template <class E>
  __device__ __forceinline__ E* of_stack(E* tensor, const Layout& layout) const {
    const unsigned item = item_of_stack();
    return tensor + layout.offset(item, stack_ * args_.heads - item * args_.item_heads.number);
  }

  /// The distance of a row of the stack from the first one.
  __device__ __forceinline__ std::int64_t offset_in_stack(int row, const Layout& layout) const {
    const std::int64_t offset = row * layout.row;
    if (args_.heads == 1) return offset;
    const std::int64_t jump = layout.head - args_.params.queries * layout.row;
    return offset + args_.queries.quotient(static_cast<unsigned>(row)) * jump;
  }

  using Scores = float[P::row_tiles][keys][4];
  using MaskWords = unsigned[masked ? own_rows : 1][masked ? keys : 1];

  __device__ static char* shared() {
    extern __shared__ __align__(1024) char memory[];
    return memory;
  }
  __device__ static unsigned row_warp() { return threadIdx.x / 32 % P::row_warps; }
  __device__ static unsigned key_warp() { return threadIdx.x / 32 / P::row_warps; }
  /// Rows of the stack: the first of the warp, and those of the thread.
  __device__ int first_row_of_warp() const {
    return first_row_ + static_cast<int>(row_warp() * P::warp_rows);
  }
  __device__ int row_of(int r) const {
    return first_row_of_warp() + static_cast<int>(8 * r + lane_of() / 4);
  }
  /// The same among all rows.
  __device__ std::int64_t row_offset(int r) const {
    return stack_ * std::int64_t{args_.rows} + row_of(r);
  }

  /// The number of keys that a row sees, of what the order and t leave; 0 if it does not exist.
  __device__ __forceinline__ int limit_of(int row) const {
    const auto keys = static_cast<int>(args_.params.keys);
    if (row >= args_.rows) return 0;
    return args_.params.is_causal ? min(keys, row + 1) : keys;
  }

  /// The least and the largest limit of the rows of the warp that exist; the largest is 0 if none
  /// does.
  __device__ __forceinline__ int min_limit() const { return limit_of(first_row_of_warp()); }
  __device__ __forceinline__ int largest_limit() const {
    const auto first = static_cast<int>(in_loop(first_row_of_warp()));
    return first >= args_.rows ? 0 : limit_of(min(first + P::warp_rows, args_.rows) - 1);
  }

  /// Finds what is needed to read the mask.
  __device__ __forceinline__ void find_mask() {
    const Params& p = args_.params;
#pragma unroll
    for (int r = 0; r < own_rows; ++r) {
      limits_[r] = limit_of(row_of(r));
      const int row = row_of(r) < args_.rows ? row_of(r) : 0;
      const int head_of_stack = row / static_cast<int>(p.queries);
      const std::int64_t head = stack_ * std::int64_t{args_.heads} + head_of_stack;
      mask_offsets_[r] = mask_offset(p.mask, head / p.heads, head % p.heads) +
                         (row - head_of_stack * p.queries) * p.mask.query_stride;
    }
  }

  __device__ __forceinline__ void load_queries(unsigned (&words)[P::row_tiles][4], int step) const {
    const unsigned at = in_loop(static_cast<unsigned>(__cvta_generic_to_shared(shared())) +
                                row_warp() * (P::warp_rows * P::line) +
                                swizzled<P::line>(lane_of() % 16, lane_of() / 16));
#pragma unroll
    for (int i = 0; i < P::row_tiles; ++i) {
      gpu::load_matrices<false>(words[i], (at ^ step * 32) + 16 * i * P::line);
    }
  }

  /// Adds the keys of the warp in a tile, from `key` on.
  __device__ __forceinline__ void add_tile(int stage, int key) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared())) + P::query_bytes +
                        stage * P::stage_bytes + key_warp() * (P::warp_keys * P::line);
    MaskWords mask;
    if constexpr (masked) read_mask(mask, key);
    Scores scores = {};
    multiply_keys(scores, at);
    if constexpr (masked) {
      apply_mask(scores, mask);
    } else {
      if (key + P::warp_keys > min_limit()) hide(scores, key);
    }
    raise_bases(scores);
#pragma unroll
    for (int r = 0; r < own_rows; ++r) {
      const float shift = shift_of(r);
#pragma unroll
      for (int j = 0; j < keys; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[r / 2][j][r % 2 * 2 + c];
          score = power_of_two(fmaf(score, factor(), shift));
          totals_[r] += score;
        }
      }
    }
    multiply_values(scores, at + P::tile_bytes);
  }

  __device__ __forceinline__ void multiply_keys(Scores& scores, unsigned at) {
    at += swizzled<P::line>(lane_of() / 16 * 8 + lane_of() % 8, lane_of() / 8 % 2);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      auto& a = queries_[P::keeps_queries ? step : 0];
      if constexpr (!P::keeps_queries) load_queries(a, step);
#pragma unroll
      for (int j = 0; j < keys; j += 2) {
        unsigned b[4];
        gpu::load_matrices<false>(b, (at ^ step * 32) + j * 8 * P::line);
#pragma unroll
        for (int i = 0; i < P::row_tiles; ++i) {
          gpu::multiply<T>(scores[i][j], a[i], b[0], b[1]);
          gpu::multiply<T>(scores[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const Scores& weights, unsigned at) {
    at += swizzled<P::line>(lane_of() % 16, lane_of() / 16);
#pragma unroll
    for (int j = 0; j < keys; j += 2) {
      unsigned a[P::row_tiles][4];
#pragma unroll
      for (int i = 0; i < P::row_tiles; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float* const pair = weights[i][j + w / 2] + w % 2 * 2;
          a[i][w] = pack<T>(pair[0], pair[1]);
        }
      }
#pragma unroll
      for (int column = 0; column < columns; column += 2) {
        unsigned b[4];
        gpu::load_matrices<true>(b, (at ^ column * 16) + j * 8 * P::line);
#pragma unroll
        for (int i = 0; i < P::row_tiles; ++i) {
          gpu::multiply<T>(sums_[i][column], a[i], b[0], b[1]);
          gpu::multiply<T>(sums_[i][column + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  /// Hides keys from the limit of each row on.
  __device__ __forceinline__ void hide(Scores& scores, int key) const {
#pragma unroll
    for (int r = 0; r < own_rows; ++r) {
      const int left = limit_of(row_of(r)) - key - static_cast<int>(lane_of() % 4 * 2);
#pragma unroll
      for (int j = 0; j < keys; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          if (8 * j + c >= left) scores[r / 2][j][r % 2 * 2 + c] = low<float>;
        }
      }
    }
  }

  /// Reads the elements of the mask for pairs of scores, to the two halves of words or, of a mask
  /// of bool, to the two lowest bytes. Keys from the limit on are hidden.
  __device__ __forceinline__ void read_mask(MaskWords& words, int key) const {
    if (args_.params.mask.is_bool) {
      read_mask<std::uint8_t, std::uint16_t>(words, key, 0);
    } else {
      read_mask<std::uint16_t, unsigned>(words, key, store<T>(low<float>).bits);
    }
  }
  template <class Element, class Pair>
  __device__ __forceinline__ void read_mask(MaskWords& words, int key, unsigned hidden) const {
    constexpr int bits = 8 * sizeof(Element);
    const auto* const data = static_cast<const Element*>(args_.params.mask.data);
    const std::int64_t stride = args_.params.mask.key_stride;
    key += static_cast<int>(lane_of() % 4 * 2);
    const auto for_each = [&](const auto& read) {
#pragma unroll
      for (int r = 0; r < own_rows; ++r) {
        const Element* const at = data + mask_offsets_[r] + key * stride;
        const int left = limits_[r] - key;
#pragma unroll
        for (int j = 0; j < keys; ++j) {
          words[r][j] = hidden | hidden << bits;
          if (8 * j < left) words[r][j] = read(at, 8 * j, 8 * j + 1 < left);
        }
      }
    };
    if (args_.mask_in_pairs) {
      for_each([&](const Element* at, int first, bool both) {
        const unsigned pair = *reinterpret_cast<const Pair*>(at + first);
        return both ? pair : (pair & ((1u << bits) - 1)) | hidden << bits;
      });
    } else {
      for_each([&](const Element* at, int first, bool both) {
        return at[first * stride] | (both ? unsigned{at[(first + 1) * stride]} : hidden) << bits;
      });
    }
  }

  /// With numbers in the mask, products become exponents of 2.
  __device__ __forceinline__ void apply_mask(Scores& scores, const MaskWords& words) const {
    const auto for_each = [&](const auto& change) {
#pragma unroll
      for (int r = 0; r < own_rows; ++r) {
#pragma unroll
        for (int j = 0; j < keys; ++j) {
          change(scores[r / 2][j][r % 2 * 2], scores[r / 2][j][r % 2 * 2 + 1], words[r][j]);
        }
      }
    };
    if (args_.params.mask.is_bool) {
      for_each([](float& first, float& second, unsigned word) {
        if ((word & 0xff) == 0) first = low<float>;
        if (word >> 8 == 0) second = low<float>;
      });
    } else {
      const auto add = [&](float& score, unsigned bits) {
        const float bias = load(T{static_cast<std::uint16_t>(bits)});
        score = bias == low<float> ? low<float> : fmaf(score, args_.factor, exponent_of(bias));
      };
      for_each([&](float& first, float& second, unsigned word) {
        add(first, word);
        add(second, word >> 16);
      });
    }
  }

  /// From scores to exponents of 2.
  __device__ __forceinline__ float factor() const {
    return masked && !args_.params.mask.is_bool ? 1.0f : args_.factor;
  }

  /// What is added to exponents of 2: less the base.
  __device__ __forceinline__ float shift_of(int r) const {
    return bases_[r] == low<float> ? 0.0f : -bases_[r] * factor();
  }

  /// Raises the bases to scores that are too large for them, and scales the sums to the new ones.
  __device__ __forceinline__ void raise_bases(const Scores& scores) {
    float largest[own_rows];
    bool raises = false;
#pragma unroll
    for (int r = 0; r < own_rows; ++r) {
      largest[r] = low<float>;
#pragma unroll
      for (int j = 0; j < keys; ++j) {
        const float* const pair = scores[r / 2][j] + r % 2 * 2;
        largest[r] = fmaxf(largest[r], fmaxf(pair[0], pair[1]));  // ignores NaN
      }
      largest[r] = gpu::reduce_in_warp<4>(largest[r], [](float a, float b) { return fmaxf(a, b); });
      raises = raises || is_too_large(largest[r], r);
    }
    if (!__any_sync(~0u, raises)) return;
#pragma unroll
    for (int r = 0; r < own_rows; ++r) {
      const bool raise = is_too_large(largest[r], r);
      const float scale = raise ? power_of_two((bases_[r] - largest[r]) * factor()) : 1.0f;
      if (raise) bases_[r] = largest[r];
      scale_row(r, scale);
    }
  }
  __device__ __forceinline__ bool is_too_large(float score, int r) const {
    return (score - bases_[r]) * factor() > 8.0f;  // not if both are -infinity
  }
  __device__ __forceinline__ void scale_row(int r, float scale) {
    totals_[r] *= scale;
#pragma unroll
    for (int column = 0; column < columns; ++column) {
      sums_[r / 2][column][r % 2 * 2] *= scale;
      sums_[r / 2][column][r % 2 * 2 + 1] *= scale;
    }
  }

  /// Adds the results of the warps that have divided the keys, in the first of them.
  __device__ __forceinline__ void add_warps() {
    struct SharedStorage {
      float2 rows[P::key_warps][16];
      float4 sums[P::key_warps - 1][columns][32];
    };
    static_assert(sizeof(SharedStorage) <= P::stages * P::stage_bytes);
    SharedStorage& storage = *reinterpret_cast<SharedStorage*>(shared() + P::query_bytes);
    gpu::wait_for_copies<0>();
    __syncthreads();
    const unsigned warp = key_warp();
    const unsigned lane = lane_of();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane % 4 == 0) storage.rows[warp][lane / 4 + 8 * r] = {bases_[r], totals_[r]};
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float2 rows[P::key_warps];
      float base = low<float>;
#pragma unroll
      for (int w = 0; w < P::key_warps; ++w) {
        rows[w] = storage.rows[w][lane / 4 + 8 * r];
        base = fmaxf(base, rows[w].x);
      }
      const auto scale = [&](float own) {
        return own == low<float> ? 0.0f : power_of_two((own - base) * factor());
      };
      scale_row(r, scale(bases_[r]));
      bases_[r] = base;
      totals_[r] = 0;
#pragma unroll
      for (int w = 0; w < P::key_warps; ++w) totals_[r] += rows[w].y * scale(rows[w].x);
    }
    if (warp > 0) {
#pragma unroll
      for (int column = 0; column < columns; ++column) {
        const float (&own)[4] = sums_[0][column];
        storage.sums[warp - 1][column][lane] = {own[0], own[1], own[2], own[3]};
      }
    }
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int w = 0; w < P::key_warps - 1; ++w) {
#pragma unroll
      for (int column = 0; column < columns; ++column) {
        const float4 other = storage.sums[w][column][lane];
        sums_[0][column][0] += other.x;
        sums_[0][column][1] += other.y;
        sums_[0][column][2] += other.z;
        sums_[0][column][3] += other.w;
      }
    }
  }

  __device__ __forceinline__ void write_part() const {
    const auto width = static_cast<int>(args_.params.value_width);
#pragma unroll
    for (int r = 0; r < own_rows; ++r) {
      if (row_of(r) >= args_.rows) continue;
      const std::int64_t at = row_offset(r) * args_.parts.count.number + part_;
      if (lane_of() % 4 == 0) {
        args_.parts.scales[at] = {bases_[r] == low<float> ? low<float> : -shift_of(r), totals_[r]};
      }
      float* const to = args_.parts.sums + at * width + lane_of() % 4 * 2;
#pragma unroll
      for (int column = 0; column < columns; ++column) {
        if (8 * column >= width) break;
        const float* const pair = sums_[r / 2][column] + r % 2 * 2;
        *reinterpret_cast<float2*>(to + 8 * column) = {pair[0], pair[1]};
      }
    }
  }

  __device__ __forceinline__ void write() const {
    const auto width = static_cast<int>(args_.params.value_width);
    // Of two neighbours, one writes 8 bytes of one unit of columns, and one of the next.
    const bool odd = lane_of() % 2 != 0;
    const int own_column = odd ? 8 : 0;
    T* const y =
        of_stack(static_cast<T*>(args_.y), args_.params.y) + own_column + (lane_of() & 2) * 2;
    unsigned again = 0;  // rows that have NaN
#pragma unroll
    for (int r = 0; r < own_rows; ++r) {
      const bool exists = row_of(r) < args_.rows;
      const float inverse = totals_[r] == 0 ? 0.0f : reciprocal(totals_[r]);
      const auto row = static_cast<int>(in_loop(static_cast<unsigned>(row_of(r))));
      T* const to = y + offset_in_stack(row, args_.params.y);
      unsigned check = 0;  // becomes NaN from NaN
#pragma unroll
      for (int column = 0; column < columns; column += 2) {
        const float* const first = sums_[r / 2][column] + r % 2 * 2;
        const float* const second = sums_[r / 2][column + 1] + r % 2 * 2;
        const unsigned words[2] = {pack<T>(first[0] * inverse, first[1] * inverse),
                                   pack<T>(second[0] * inverse, second[1] * inverse)};
        add_pair<T>(check, words[0]);
        add_pair<T>(check, words[1]);
        const unsigned other = __shfl_xor_sync(~0u, odd ? words[0] : words[1], 1);
        if (exists && 8 * column + own_column < width) {
          *reinterpret_cast<uint2*>(to + 8 * column) = {odd ? other : words[0],
                                                        odd ? words[1] : other};
        }
      }
      if (exists && args_.lse != nullptr && lane_of() % 4 == 0) {
        float* const lse = packed
                               ? of_stack(args_.lse, args_.params.lse) + row * args_.params.lse.row
                               : args_.lse + row_offset(r);
        *lse = fmaf(shift_of(r), -ln_2, logf(totals_[r]));
      }
      unsigned lanes = __ballot_sync(~0u, exists && has_nan<T>(check));
      lanes |= lanes >> 1;
      lanes |= lanes >> 2;
      again |= (lanes & 0x11111111) << r;
    }
    if (again == 0) return;
    __syncwarp();  // the lanes write over what others wrote
    const std::int64_t first = row_offset(0) - lane_of() / 4;
    for (; again != 0; again &= again - 1) {
      const int bit = __ffs(static_cast<int>(again)) - 1;
      attend_again<T, !packed>(args_, first + 8 * (bit % 4) + bit / 4);
    }
  }

  const Args& args_;
  unsigned stack_;
  unsigned part_;
  int first_row_;
  int tile_;       // of keys: the next
  int last_tile_;  // the one after the block's last
  int limits_[masked ? own_rows : 1];
  std::int64_t mask_offsets_[masked ? own_rows : 1];  // in the mask
  unsigned queries_[P::keeps_queries ? steps : 1][P::row_tiles][4];
  float bases_[own_rows];
  float totals_[own_rows] = {};
  float sums_[P::row_tiles][columns][4] = {};
};

#endif

template <class T, class P, bool masked>
__global__ void __launch_bounds__(P::threads, masked&& P::blocks > 2 ? P::blocks - 1 : P::blocks)
    attend_tiles(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 800
  if constexpr (has_config<P>(__CUDA_ARCH__ / 10)) {
    gpu::wait_for_previous_kernel();
    gpu::let_next_kernel_start();
    Kernel<T, P, Arguments, masked>(args).run();
  }
#endif
}

/// Of packed sequences; args.tiles is the number of slots of a head.
template <class T, class P>
__global__ void __launch_bounds__(P::threads, P::blocks)
    attend_packed_tiles(const __grid_constant__ Arguments args,
                        const __grid_constant__ Sequences sequences) {
#if __CUDA_ARCH__ >= 800
  gpu::wait_for_previous_kernel();
  gpu::let_next_kernel_start();
  __shared__ __align__(16) char memory[sizeof(PackedArguments)];
  PackedArguments& own = *reinterpret_cast<PackedArguments*>(memory);
  __shared__ bool exists;
  const unsigned stack = args.tiles.quotient(blockIdx.x);
  // Causal: the last tiles of a sequence, which have most visible keys, start first.
  const unsigned slot = args.tiles.number * (stack + 1) - 1 - blockIdx.x;
  PackedTile tile{};
  if (threadIdx.x < 32) {
    tile = find_tile<P::rows>(static_cast<int>(slot), sequences.q_ends,
                              static_cast<int>(sequences.count), args.params.queries);
    if (threadIdx.x == 0) exists = tile.exists();
  } else {
    copy_words<P::threads - 32>(args, static_cast<Arguments&>(own), threadIdx.x - 32);
  }
  __syncthreads();
  if (!exists) return;
  if (threadIdx.x == 0) {
    const Batch keys = keys_of(tile.number, sequences, args.params.keys);
    Params& p = own.params;
    p.queries = tile.sequence.end - tile.sequence.begin;
    p.keys = keys.end - keys.begin;
    own.rows = static_cast<int>(p.queries);
    own.stack = stack;
    own.first_row = static_cast<int>(tile.first);
    own.q = static_cast<const T*>(args.q) + tile.sequence.begin * p.q.row;
    own.k = static_cast<const T*>(args.k) + keys.begin * p.k.row;
    own.v = static_cast<const T*>(args.v) + keys.begin * p.v.row;
    own.y = static_cast<T*>(args.y) + tile.sequence.begin * p.y.row;
    if (args.lse != nullptr) own.lse = args.lse + tile.sequence.begin * p.lse.row;
  }
  __syncthreads();
  Kernel<T, P, PackedArguments, false>(own).run();
#endif
}

}  // namespace cudarelu::ops::attention::mma

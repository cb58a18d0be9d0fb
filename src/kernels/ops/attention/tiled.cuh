// Attention in float32 and float64 by tiles: what the forward and the backward kernels share.
//
// A group of 4 warps works with some rows of one matrix, which stay in shared memory, while tiles
// of the rows of another matrix pass. For each tile it computes the scores, sums over the columns
// of both. Factors made of the scores then weight the rows of a third matrix, which belong to the
// rows that pass, and the sums over them stay in registers. Each thread holds a tile of the sums,
// and reads its rows and columns of the factors from shared memory as vectors.
//
// -0 is the weight of a hidden row, 0 may be that of a visible one.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include "cuda/tile/threads.cuh"
#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/async_copy.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "ops/attention/arithmetic.cuh"
#include "ops/attention/cuda.cuh"
#include "ops/attention/engines.h"
#include "ops/attention/packed.cuh"

namespace cudarelu::ops::attention::tiled {

using gpu::arrive_at;
using gpu::wait_at;

inline constexpr int threads = 128;  // of a group

/// Waits for the threads of a group. Barrier 0 is that of the block.
__device__ __forceinline__ void wait_for_group(int group) { wait_at<threads>(1 + group); }

/// 16 bytes.
template <class T>
struct alignas(16) Few {
  static constexpr int size = 16 / sizeof(T);
  T x[size];
};

template <class T>
__device__ __forceinline__ Few<T> read(const T* from) {
  return *reinterpret_cast<const Few<T>*>(from);
}

/// The part of a thread of a matrix that a group holds. warps_m warps, and of each lanes_m lanes,
/// are side by side in a column; their rows, and their columns, alternate, `vector` at a time.
template <int warps_m, int lanes_m, int rows_, int columns_, int vector>
struct Share {
  static constexpr int lanes_n = 32 / lanes_m;
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int all_rows = warps_m * lanes_m * rows;
  static constexpr int all_columns = 4 / warps_m * lanes_n * columns;
  static_assert(rows % vector == 0 && columns % vector == 0);

  int row;  // the first one
  int column;

  __device__ explicit Share(int thread) {
    const int lane = thread % 32;
    const int warp = thread / 32;
    const int lane_m = gpu::row_of_thread(lane) % lanes_m;
    const int lane_n = lanes_m == 4 ? gpu::column_of_thread(lane) : lane / lanes_m;
    row = warp % warps_m * lanes_m * rows + lane_m * vector;
    column = warp / warps_m * lanes_n * columns + lane_n * vector;
  }

  /// The distance of row i, and of column j, from the first one.
  __device__ static constexpr int row_step(int i) {
    return i / vector * (vector * lanes_m) + i % vector;
  }
  __device__ static constexpr int column_step(int j) {
    return j / vector * (vector * lanes_n) + j % vector;
  }

  /// Combines the values of the threads that hold the same rows, which one warp must hold.
  template <class C, class Combine>
  __device__ static C reduce(C value, const Combine& combine) {
    static_assert(warps_m == 4);
#pragma unroll
    for (int distance = lanes_m == 1 ? 1 : 2; distance < (lanes_m == 4 ? 16 : 32); distance *= 2) {
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
  }
};

/// `rows` rows stay while `others` pass. No matrix has more than `width` columns. A thread has
/// score_rows rows of the scores, and result_rows rows of the results. A stage of the copies has
/// `chunk` bytes.
template <class T_, int width_, int rows_, int others_, int score_rows, int result_rows,
          int chunk = 8192>
struct SimtConfig {
  using T = T_;
  /// Packed sequences and others share a kernel, to compile less. It has its arguments in shared
  /// memory; the most frequent configuration has a kernel for each.
  static constexpr bool shares_kernel = sizeof(T) == 8 || width_ != 64;
  static constexpr int vector = Few<T>::size;
  static constexpr int width = width_;
  static constexpr int rows = rows_;
  static constexpr int others = others_;
  static constexpr int score_lanes = rows / (4 * score_rows);  // in a column
  static constexpr int result_warps = rows / (4 * result_rows);
  using Scores = Share<4, score_lanes, score_rows, others * score_lanes / 32, vector>;
  using Results = Share<result_warps, 4, result_rows, width * result_warps / 32, vector>;
  static_assert(Scores::all_rows == rows && Scores::all_columns == others);
  static_assert(Results::all_rows == rows && Results::all_columns == width);

  static constexpr int stages = 2;
  static constexpr int depth = chunk / (others * static_cast<int>(sizeof(T)));  // of scored rows
  static constexpr int lines = chunk / (width * static_cast<int>(sizeof(T)));   // of weighted rows
  static_assert(others % lines == 0);
  static constexpr int pitch = rows + vector;  // so that transposing has no bank conflicts
  static constexpr int other_pitch = others + vector;
  // Elements in shared memory.
  static constexpr int staying_size = width * pitch;
  static constexpr int factors_size = others * pitch;
  static constexpr int ring_size = stages * std::max(depth * other_pitch, lines* width);

  /// The factors that a thread makes of its scores in column j and some rows from i on.
  __device__ static Few<T>* factors_of(T* factors, const Scores& share, int i, int j) {
    return reinterpret_cast<Few<T>*>(factors + (share.column + Scores::column_step(j)) * pitch +
                                     share.row + Scores::row_step(i));
  }
};

/// sums += the product of two tiles of `depth` rows in shared memory, which are given from the
/// thread's first element on.
template <class S, int depth, int left_pitch, int right_pitch, class T>
__device__ __forceinline__ void multiply(T (&sums)[S::rows][S::columns], const T* left_tile,
                                         const T* right_tile) {
  // In float32 the next factors are loaded in advance; in float64 the registers do not suffice.
  constexpr int vector = Few<T>::size;
  constexpr int buffers = sizeof(T) == sizeof(float) ? 2 : 1;
  constexpr int unrolled = std::min(depth, buffers == 2 ? 8 : 2);
  static_assert(depth % unrolled == 0 && unrolled % buffers == 0);
  T left[buffers][S::rows];
  T right[buffers][S::columns];
  const auto load = [&](int k) {
#pragma unroll
    for (int i = 0; i < S::rows; i += vector) {
      reinterpret_cast<Few<T>&>(left[k % buffers][i]) =
          read(left_tile + k * left_pitch + S::row_step(i));
    }
#pragma unroll
    for (int j = 0; j < S::columns; j += vector) {
      reinterpret_cast<Few<T>&>(right[k % buffers][j]) =
          read(right_tile + k * right_pitch + S::column_step(j));
    }
  };
  if (buffers == 2) load(0);
#pragma unroll 1
  for (int first = 0; first < depth; first += unrolled) {
#pragma unroll
    for (int k = 0; k < unrolled; ++k) {
      const int next = k + buffers - 1;
      if (next < unrolled || first + unrolled < depth) load(next);
#pragma unroll
      for (int n = 0; n < S::rows * S::columns; ++n) {
        const int i = gpu::back_and_forth(n, S::rows);
        const int j = n / S::rows;
        sums[i][j] = fma(left[k % buffers][i], right[k % buffers][j], sums[i][j]);
      }
    }
    left_tile += unrolled * left_pitch;
    right_tile += unrolled * right_pitch;
  }
}

/// Calls use(i) for every `step`-th of `count` rows of HeadRows::visit(). The loop is unrolled, but
/// not for rows of several heads, to compile less.
template <class Rows, class Use>
__device__ __forceinline__ void for_each_row(int count, int step, const Use& use) {
  if constexpr (Rows::has_divisions) {
#pragma unroll 1
    for (int i = 0; i < count; i += step) use(i);
  } else {
#pragma unroll
    for (int i = 0; i < count; i += step) use(i);
  }
}

template <class T>
struct Matrix {
  HeadRows<const T, int> at;
  int rows;
  int columns;
  bool vectors;  // rows can be read 16 bytes at a time
};

/// Starts the copy of `columns` columns of `rows` rows to as many rows of `pitch` elements, by
/// `count` threads. Zeros are outside of the matrix.
template <int rows, int pitch, int columns, class T>
__device__ __forceinline__ void copy_turned(T* to, const Matrix<T>& matrix, int first_row,
                                            int first_column, int thread, int count) {
  constexpr int run = 8;  // columns that neighbours read of a row
  const int row = thread / run;
  const int column = thread % run;
  const int rows_left = matrix.rows - first_row - row;
  const int columns_left = matrix.columns - first_column - column;
  to += column * pitch + row;
  matrix.at.visit(first_row, rows, [&]<class At>(const At& at) {
    if (rows < count / run && row >= rows) return;
    for_each_row<At>(rows, count / run, [&](int i) {
      const T* const from = at(row + i) + first_column + column;
#pragma unroll
      for (int k = 0; k < columns; k += run) {
        gpu::copy_async<sizeof(T)>(to + k * pitch + i, from + k, i < rows_left && k < columns_left);
      }
    });
  });
}

/// Starts the copy of `rows` rows of up to `columns` columns by a group.
template <int rows, int columns, class T>
__device__ __forceinline__ void copy_rows(T* to, const Matrix<T>& matrix, int first_row) {
  constexpr int vector = Few<T>::size;
  constexpr int vectors = columns / vector;  // of a row
  constexpr int at_a_time = threads / vectors;
  static_assert(threads % vectors == 0 && rows % at_a_time == 0);
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int row = thread / vectors;
  const int column = thread % vectors * vector;
  const int rows_left = matrix.rows - first_row - row;
  const int columns_left = matrix.columns - column;
  to += row * columns + column;
  if (matrix.vectors) {
    matrix.at.visit(first_row, rows, [&]<class At>(const At& at) {
      for_each_row<At>(rows, at_a_time, [&](int i) {
        gpu::copy_async<16>(to + i * columns, at(row + i) + column,
                            i < rows_left && columns_left > 0);
      });
    });
  } else {
#pragma unroll 1
    for (int i = 0; i < rows; i += at_a_time) {
      const T* const from = matrix.at[first_row + row + i] + column;
#pragma unroll
      for (int e = 0; e < vector; ++e) {
        gpu::copy_async<sizeof(T)>(to + i * columns + e, from + e,
                                   i < rows_left && e < columns_left);
      }
    }
  }
}

/// The copies of a group. Of each tile of the rows that pass, first the columns that are scored
/// come, then the rows that are weighted. Tiles tells the first row of each tile. The matrices must
/// outlive the stream.
template <class P, class Tiles>
class Stream {
  using T = typename P::T;

 public:
  __device__ Stream(T* ring, int group, const Tiles& tiles, const Matrix<T>& scored, int steps,
                    const Matrix<T>& weighted)
      : ring_(ring),
        group_(group),
        tiles_(tiles),
        scored_(scored),
        weighted_(weighted),
        steps_(steps),
        first_(tiles.first()) {
    fetch();
  }

  /// Waits for the next stage, for all threads of the group. No thread may still read the previous
  /// one after it has called this.
  __device__ const T* next() {
    gpu::wait_for_copies<0>();
    wait_for_group(group_);
    const T* const stage = ring_ + (stage_ ^ 1) * stage_size;
    fetch();
    return stage;
  }

 private:
  static_assert(P::stages == 2);
  static constexpr int stage_size = P::ring_size / P::stages;

  __device__ void fetch() {
    if (tiles_.has(first_)) {
      T* const to = ring_ + stage_ * stage_size;
      if (step_ < steps_) {
        copy_turned<P::others, P::other_pitch, P::depth>(to, scored_, first_, step_ * P::depth,
                                                         static_cast<int>(threadIdx.x) % threads,
                                                         threads);
      } else {
        copy_rows<P::lines, P::width>(to, weighted_, first_ + (step_ - steps_) * P::lines);
      }
      if (++step_ == steps_ + P::others / P::lines) {
        step_ = 0;
        first_ = tiles_.next(first_);
      }
    }
    gpu::commit_copies();
    stage_ ^= 1;
  }

  T* ring_;
  int group_;
  Tiles tiles_;
  const Matrix<T>& scored_;
  const Matrix<T>& weighted_;
  int steps_;
  int first_;  // of the tile that is copied next
  int step_ = 0;
  int stage_ = 0;  // that is copied next
};

/// What a block of a kernel for packed sequences knows, in shared memory: its sequence and tile,
/// and the parameters and the tensors from the sequence on.
template <class Tensors>
struct Own {
  Params params;
  Tensors tensors;
  PackedTile tile;
};

/// The queries of a head of k and v: those of all heads of q that share it, one after the other.
struct Queries {
  std::int64_t kv;  // the head, counted over the batch
  int count;

  __device__ static Queries of(const Params& p, std::int64_t head) {
    return {head, static_cast<int>(p.group() * p.queries)};
  }

  /// The first of them among those of all heads.
  __device__ std::int64_t first() const { return kv * count; }

  /// The offset in the mask of query `row`, and the number of keys that it may see.
  __device__ std::int64_t mask_offset(const Params& p, int row) const {
    if (p.mask.data == nullptr) return 0;
    const auto queries = static_cast<int>(p.queries);
    const std::int64_t head = kv % p.kv_heads * p.group() + row / queries;
    return p.mask.offset(kv / p.kv_heads, head) + row % queries * p.mask.query_stride;
  }
  __device__ int visible(const Params& p, int row) const {
    const auto keys = static_cast<int>(p.keys);
    return p.is_causal ? min(keys, row % static_cast<int>(p.queries) + 1) : keys;
  }

  /// The most and the fewest keys that a query of a tile may see.
  __device__ int max_visible(const Params& p, int first, int size) const {
    const auto queries = static_cast<int>(p.queries);
    const int last = min(first % queries + size, queries) - 1;
    return p.is_causal ? min(static_cast<int>(p.keys), last + 1) : static_cast<int>(p.keys);
  }
  __device__ int min_visible(const Params& p, int first, int size) const {
    const auto queries = static_cast<int>(p.queries);
    const bool has_first_query = first % queries + size > queries;
    return visible(p, has_first_query ? 0 : first);
  }
};

/// mask_offset() and visible() of the queries of a tile, in shared memory.
template <int size>
struct Limits {
  std::int64_t mask_offsets[size];
  int visible[size];

  /// Queries past the end see no key.
  __device__ void set(const Params& p, const Queries& queries, int first, int thread) {
    for (int i = thread; i < size; i += threads) {
      const int row = min(first + i, queries.count - 1);
      mask_offsets[i] = queries.mask_offset(p, row);
      visible[i] = first + i < queries.count ? queries.visible(p, row) : 0;
    }
  }
};

/// Moves a thread's scores `count` columns to the left; the first columns become the last ones.
template <int count, class T, int rows, int columns>
__device__ __forceinline__ void rotate(T (&scores)[rows][columns]) {
#pragma unroll
  for (auto& row : scores) {
    T first[count];
#pragma unroll
    for (int j = 0; j < count; ++j) first[j] = row[j];
#pragma unroll
    for (int j = 0; j + count < columns; ++j) row[j] = row[j + count];
#pragma unroll
    for (int j = 0; j < count; ++j) row[columns - count + j] = first[j];
  }
}

/// Adds the mask to the scores of a thread; those of hidden keys become -infinity. Rows of the
/// tile are queries, or columns are if `turned`.
template <class S, bool turned, class T, int size>
__device__ __forceinline__ void apply_mask(const Params& p, T (&scores)[S::rows][S::columns],
                                           const S& share, const Limits<size>& limits,
                                           int first_key) {
  constexpr int some = Few<T>::size;  // columns at a time, to save registers
  const auto stride = static_cast<int>(p.mask.key_stride);
  const auto for_some = [&](int column, const auto& masked) {
#pragma unroll
    for (int i = 0; i < S::rows; ++i) {
#pragma unroll
      for (int j = 0; j < some; ++j) {
        const int row_at = share.row + S::row_step(i);
        const int column_at = column + S::column_step(j);
        const int query = turned ? column_at : row_at;
        const int key = first_key + (turned ? row_at : column_at);
        T& score = scores[i][j];
        score = key < limits.visible[query]
                    ? masked(score,
                             limits.mask_offsets[query] + static_cast<std::int64_t>(key) * stride)
                    : low<T>;
      }
    }
  };
#pragma unroll 1
  for (int j = 0; j < S::columns; j += some) {
    const int column = share.column + S::column_step(j);
    if (p.mask.data == nullptr) {
      for_some(column, [](T score, std::int64_t) { return score; });
    } else if (p.mask.is_bool) {
      const auto* const mask = static_cast<const std::uint8_t*>(p.mask.data);
      for_some(column, [&](T score, std::int64_t at) { return mask[at] == 0 ? low<T> : score; });
    } else {
      const auto* const mask = static_cast<const T*>(p.mask.data);
      for_some(column, [&](T score, std::int64_t at) {
        const T bias = mask[at];
        return bias == low<T> ? low<T> : score + bias;
      });
    }
    rotate<some>(scores);
  }
}

/// exp(x) for x <= 0; in float32 with a relative error of 2^-22 and of |x| 2^-24.
__device__ __forceinline__ float power(float x) { return power_of_two(x * log2_e); }
__device__ __forceinline__ double power(double x) { return exp(x); }

/// Writes a thread's scores, or what they have become, to the factors: a row for each column.
template <class P>
__device__ __forceinline__ void write_factors(
    typename P::T* factors, const typename P::Scores& share,
    const typename P::T (&scores)[P::Scores::rows][P::Scores::columns]) {
#pragma unroll
  for (int j = 0; j < P::Scores::columns; ++j) {
#pragma unroll
    for (int i = 0; i < P::Scores::rows; i += P::vector) {
      Few<typename P::T> few;
#pragma unroll
      for (int e = 0; e < P::vector; ++e) few.x[e] = scores[i + e][j];
      *P::factors_of(factors, share, i, j) = few;
    }
  }
}

/// Writes a thread's rows of the results, times `factor`, to rows from `first` on. Returns whether
/// one of them has a NaN, and then sets its element of `flags`.
template <class S, class T>
__device__ bool write_results(const T (&sums)[S::rows][S::columns], const S& share, T factor,
                              const HeadRows<T, int>& to, int first, int rows_left, int columns,
                              bool vectors, int* flags) {
  bool any = false;
#pragma unroll
  for (int i = 0; i < S::rows; ++i) {
    const int row = share.row + S::row_step(i);
    T* const to_row = to[first + row] + share.column;
    bool has_nan = false;
#pragma unroll
    for (int j = 0; j < S::columns; j += Few<T>::size) {
      const int column = share.column + S::column_step(j);
      T* const at = to_row + S::column_step(j);
      Few<T> few;
#pragma unroll
      for (int e = 0; e < Few<T>::size; ++e) {
        few.x[e] = sums[i][j + e] * factor;
        has_nan |= few.x[e] != few.x[e];
      }
      if (row >= rows_left) continue;
      if (vectors) {
        if (column < columns) *reinterpret_cast<Few<T>*>(at) = few;
      } else {
#pragma unroll
        for (int e = 0; e < Few<T>::size; ++e) {
          if (column + e < columns) at[e] = few.x[e];
        }
      }
    }
    if (has_nan && row < rows_left) {
      flags[row] = 1;
      any = true;
    }
  }
  return any;
}

/// The weight of a row of a matrix in a sum. A hidden row is not read: it may be NaN.
template <class T>
struct Weight {
  T value;
  bool is_hidden;
};

/// A row of the results, computed by a warp: factor times the sum of the visible rows of a matrix.
/// For the few rows that get NaN in a tile, where 0 weights hidden rows.
template <class T, class WeightOf>
__device__ void sum_visible(const Matrix<T>& matrix, T factor, T* to, const WeightOf& weight_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = 0; first < matrix.columns; first += pass) {
    T sums[columns_of_lane] = {};
    for (int row = 0; row < matrix.rows; row += 32) {
      Weight<T> weight{0, true};
      if (row + lane < matrix.rows) weight = weight_of(row + lane);
      unsigned left = __ballot_sync(0xffffffffu, !weight.is_hidden);
      for (; left != 0; left &= left - 1) {
        const int source = __ffs(static_cast<int>(left)) - 1;
        const T value = __shfl_sync(0xffffffffu, weight.value, source);
        const T* const from = matrix.at[row + source];
#pragma unroll
        for (int i = 0; i < columns_of_lane; ++i) {
          const int column = first + lane + 32 * i;
          if (column < matrix.columns) sums[i] = fma(value, from[column], sums[i]);
        }
      }
    }
    write_row(sums, factor, matrix.columns, first, to);
  }
}

/// Whether rows of `columns` elements of all tensors can be accessed 16 bytes at a time.
template <class T>
bool has_vectors(std::int64_t columns,
                 std::initializer_list<std::pair<const T*, const Layout&>> tensors) {
  return columns % Few<T>::size == 0 && std::ranges::all_of(tensors, [](const auto& tensor) {
           return gpu::misalignment(tensor.first) == 0 && attention::has_vectors<T>(tensor.second);
         });
}

/// Calls run(TypeTag<P>) with the tiling for the call, if there is one.
template <class Run>
std::optional<Status> with_tiling(const Params& p, DType dtype, const Run& run) {
  constexpr std::int64_t most = std::numeric_limits<int>::max() / 2;
  const std::int64_t width = std::max(p.width, p.value_width);
  if (std::min(p.width, p.value_width) == 0 || width > 256 || p.keys > most ||
      p.batch * p.heads == 0 || p.group() * p.queries > most) {
    return std::nullopt;
  }
  for (const Layout& layout : {p.q, p.k, p.v, p.y, p.grad_y, p.grad_q, p.grad_k, p.grad_v}) {
    if (layout.row > std::numeric_limits<int>::max()) return std::nullopt;
  }
  if (dtype == DType::float32) {
    if (width <= 32) return run(TypeTag<SimtConfig<float, 32, 128, 64, 8, 8>>{});
    if (width <= 64) return run(TypeTag<SimtConfig<float, 64, 128, 64, 8, 8>>{});
    if (width <= 128) return run(TypeTag<SimtConfig<float, 128, 64, 128, 8, 8>>{});
    return run(TypeTag<SimtConfig<float, 256, 32, 128, 8, 8>>{});
  }
  if (dtype == DType::float64) {
    if (width <= 128) return run(TypeTag<SimtConfig<double, 128, 32, 64, 4, 8>>{});
    return run(TypeTag<SimtConfig<double, 256, 16, 128, 4, 4>>{});
  }
  return std::nullopt;
}

/// Launches a kernel for blocks of `groups` groups, if the device has the shared memory.
template <auto kernel, int max_bytes, class... Arguments>
std::optional<Status> launch_blocks(const Call& call, std::int64_t blocks, int groups, int bytes,
                                    const Arguments&... arguments) {
  constexpr int others = 6144;  // at most, of static arrays
  const int available =
      gpu::number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(call.execution.device_index);
  if (available < bytes + others || blocks > std::numeric_limits<int>::max()) return std::nullopt;
  if (Status status =
          gpu::allow_shared_memory<kernel>(call, std::min(max_bytes, available - others));
      !status.ok())
    return status;
  return gpu::launch(call, kernel,
                     {static_cast<unsigned>(blocks), static_cast<unsigned>(groups * threads),
                      static_cast<std::size_t>(bytes)},
                     arguments...);
}

}  // namespace cudarelu::ops::attention::tiled

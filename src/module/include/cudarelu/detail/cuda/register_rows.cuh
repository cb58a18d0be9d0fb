// Rows in registers: a group of threads, a part of a warp or a block, reads a row once and holds
// it. A row that is too long is processed in chunks, which are read again in each pass.
#pragma once

#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/cuda/row_vector.cuh"

namespace cudarelu::gpu {

/// How rows are distributed. `lanes` threads of a warp have a row; 0: the whole block has one. Each
/// thread holds `vectors` vectors of `width` elements of each input. `whole`: together these are
/// the row, else a chunk of it. `even`: rows begin and end at boundaries of vectors. Example:
/// RowLayout<16, 2, 4> is for float32 rows of up to 32 vectors, which are 128 columns if even; a
/// block of 256 threads has 16 rows.
template <int lanes_, int vectors_, int width_, bool whole_ = true, bool even_ = false>
struct RowLayout {
  static constexpr int lanes = lanes_;
  static constexpr int vectors = vectors_;
  static constexpr int width = width_;
  static constexpr bool whole = whole_;
  static constexpr bool even = even_;
  static constexpr int max_threads =
      lanes == 0 && vectors <= 4 ? 512 : (lanes == 32 && even ? 128 : 256);
};

template <class T, int inputs, class Layout, int shared = 0>
class RegisterRows {
 public:
  using Part = RowPart<T, inputs + shared, Layout::vectors, Layout::width>;
  static constexpr int max_threads = Layout::max_threads;
  static constexpr int min_blocks = 0;  // for __launch_bounds__(): the compiler decides
  static constexpr int warp_lanes = Layout::lanes != 0 ? Layout::lanes : 32;  // of a row
  static constexpr bool one_warp = Layout::lanes != 0;                        // has the row

  __device__ RegisterRows(const RowInputs<T, inputs, shared>& data, std::int64_t rows,
                          std::int64_t columns)
      : data_(data) {
    if constexpr (one_warp) {
      constexpr int rows_of_block = max_threads / Layout::lanes;
      row_ = static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / Layout::lanes;
      lane_ = threadIdx.x % Layout::lanes;
      lanes_ = Layout::lanes;
    } else {
      row_ = blockIdx.x;
      lane_ = threadIdx.x;
      lanes_ = blockDim.x;
    }
    columns_ = row_ < rows ? columns : 0;  // threads without a row keep their warp complete
    offset_ = row_ * columns;
    wait_for_previous_kernel();
  }

  /// Processes the row of the thread.
  /// 1. prepare(part) may change each part that was read and set its mark. Elements outside of the
  ///    row are `outside`.
  /// 2. reduce(visit) returns the value of the warp. visit(f) calls f(part) for each part.
  /// 3. combine(all) returns the value of the row if several warps have it, the same in each lane.
  ///    all(f) calls f for the values of the warps, for each in one lane. It may run in one warp
  ///    for all of a block: only what it returns reaches the others.
  /// 4. value(part, i, combined) is the result for element i. Only now the part has shared rows.
  ///
  /// Example: for a sum, reduce adds the elements of the parts and the lanes of the warp, combine
  /// adds the sums of the warps, and value returns the sum.
  template <class Prepare, class Reduce, class Combine, class Value>
  __device__ void run(T* output, T outside, const Prepare& prepare, const Reduce& reduce,
                      const Combine& combine, const Value& value) {
    const auto of_warp = reduce([&](const auto& visit) {
      for_each_chunk([&](Column chunk) {
        load(chunk, outside);
        prepare(part_);
        visit(part_);
      });
    });
    const auto combined = [&] {
      if constexpr (one_warp) {
        return of_warp;
      } else {
        return combine([&](const auto& visit) { visit_values(of_warp, visit); });
      }
    }();
    T* const row = output + offset_;
    for_each_chunk([&](Column chunk) {
      if constexpr (Layout::whole) {
        part_.stay_packed();
      } else {
        load(chunk, outside);
        prepare(part_);
      }
#pragma unroll
      for (int v = 0; v < Layout::vectors; ++v) {
        load_shared_rows(part_, data_, v, first_column(row, chunk, v));
        const auto vector = Part::results(v, [&](int i) { return value(part_, i, combined); });
        const Column first = first_column(row, chunk, v);
        if constexpr (Layout::even) {
          if (part_.inside[v] == Part::all) vector.write_to(row + first);
          continue;
        }
        if (first >= 0 && first + Layout::width <= columns_) {
          vector.write_to(row + first);
          continue;
        }
#pragma unroll
        for (int j = 0; j < Layout::width; ++j) {
          if (first + j >= 0 && first + j < columns_) row[first + j] = vector[j];
        }
      }
    });
  }

 private:
  using Column = std::conditional_t<Layout::whole, int, std::int64_t>;
  using Vector = RowVector<T, Layout::width>;

  template <class P, class Visit>
  __device__ static void visit_values(const P& value, const Visit& visit) {
    __shared__ P values[max_threads / 32];
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x % 32 < blockDim.x / 32) visit(values[threadIdx.x % 32]);
  }

  template <class Pass>
  __device__ void for_each_chunk(const Pass& pass) {
    if constexpr (Layout::whole) {
      pass(0);
    } else {
      const Column step = static_cast<Column>(lanes_) * Layout::vectors;
      // A row that begins or ends within vectors has up to two more than it fills.
      for (Column chunk = 0; chunk < columns_ / Layout::width + 2; chunk += step) pass(chunk);
    }
  }

  /// The column at which vector v begins: negative if the row begins within that vector.
  __device__ Column first_column(const T* row, Column chunk, int v) const {
    if constexpr (Layout::even) return (v * lanes_ + lane_) * Layout::width;
    const auto before = reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % Layout::width;
    return (chunk + v * lanes_ + lane_) * Layout::width - static_cast<Column>(before);
  }

  __device__ void load(Column chunk, T outside) {
#pragma unroll
    for (int input = 0; input < inputs; ++input) {
      const T* const row = data_.data[input] + offset_;
#pragma unroll
      for (int v = 0; v < Layout::vectors; ++v) {
        const Column first = first_column(row, chunk, v);
        if constexpr (Layout::even) {
          part_.inside[v] = first < columns_ ? Part::all : 0;
          part_.data[input][v].fill(outside);
          if (first < columns_) {
            part_.data[input][v] = *reinterpret_cast<const Vector*>(row + first);
          }
          continue;
        }
        if (first >= 0 && first + Layout::width <= columns_) {
          part_.data[input][v] = *reinterpret_cast<const Vector*>(row + first);
          part_.inside[v] = Part::all;
          continue;
        }
        part_.inside[v] =
            element_bits(static_cast<int>(max(-first, Column{0})),
                         static_cast<int>(min(columns_ - first, Column{Layout::width})));
#pragma unroll
        for (int j = 0; j < Layout::width; ++j) {
          const bool inside = first + j >= 0 && first + j < columns_;
          part_.data[input][v].set(j, inside ? row[first + j] : outside);
        }
      }
    }
  }

  RowInputs<T, inputs, shared> data_;
  std::int64_t row_;
  std::int64_t offset_;
  Column columns_;
  int lane_;
  int lanes_;
  Part part_;
};

}  // namespace cudarelu::gpu

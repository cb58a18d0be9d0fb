// Rows in registers: each is read once by a group of threads, a part of a warp or a block. A longer
// one, or one whose tensors cannot be read in vectors at the same places, is taken in chunks, which
// are read again for each pass.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/row_vector.cuh"

namespace cudarelu::cuda {

/// How a block divides rows: `lanes` threads of a warp have a row, or, for 0, the whole block has.
/// Each holds `vectors` vectors of `width` elements of each input: of the row, or of a chunk of it.
/// Even rows are whole vectors.
template <int lanes_, int vectors_, int width_, bool whole_ = true, bool even_ = false>
struct RowLayout {
  static constexpr int lanes = lanes_;
  static constexpr int vectors = vectors_;
  static constexpr int width = width_;
  static constexpr bool whole = whole_;
  static constexpr bool even = even_;
  static constexpr int most_threads =
      lanes == 0 && vectors <= 4 ? 512 : (lanes == 32 && even ? 128 : 256);
};

template <class T, int inputs, class Layout, int shared = 0>
class RegisterRows {
 public:
  using Part = RowPart<T, inputs + shared, Layout::vectors, Layout::width>;
  static constexpr int most_threads = Layout::most_threads;
  static constexpr int warp_lanes = Layout::lanes != 0 ? Layout::lanes : 32;  // of one row
  static constexpr bool one_warp = Layout::lanes != 0;                        // has a row

  __device__ RegisterRows(const RowInputs<T, inputs, shared>& data, std::int64_t rows,
                          std::int64_t columns)
      : data_(data) {
    if constexpr (one_warp) {
      constexpr int rows_of_block = most_threads / Layout::lanes;
      row_ = static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / Layout::lanes;
      lane_ = threadIdx.x % Layout::lanes;
      lanes_ = Layout::lanes;
    } else {
      row_ = blockIdx.x;
      lane_ = threadIdx.x;
      lanes_ = blockDim.x;
    }
    columns_ = row_ < rows ? columns : 0;  // warps stay whole
    offset_ = row_ * columns;
    wait_for_previous_kernel();
  }

  /// For the row of the thread: prepare(part) changes each part as it is read, if it does, and may
  /// leave a mark. `reduce(visit)` gives the value of its warp, where visit(f) calls
  /// f(part) for each part that the thread has, with `outside` in the place of elements that are
  /// not of the row. Where several warps have the row, `combine(all)` makes the row's value of
  /// theirs, where all(f) calls f(value) for each, in one lane of each warp. value(part, i,
  /// combined) goes to element i; shared rows are in the part for it alone.
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
    __shared__ P values[most_threads / 32];
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
      // A row that begins and ends within vectors has one more of them.
      for (Column chunk = 0; chunk < columns_ / Layout::width + 2; chunk += step) pass(chunk);
    }
  }

  /// Vectors are aligned in memory: a row may begin within one.
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

}  // namespace cudarelu::cuda

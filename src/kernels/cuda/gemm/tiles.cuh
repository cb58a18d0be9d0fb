// For kernels whose blocks compute tiles of the result: the order of tiles, and the epilogue.
#pragma once

#include <cstdint>

#include "activation.h"
#include "cudarelu/gemm.h"
#include "cudarelu/types.h"

namespace cudarelu::gpu {

/// A tile of the results of a batch.
struct Tile {
  int matrix;  // of the batch
  int row;     // in tiles
  int column;
};

/// Tile `number` of matrices of `rows` by `columns` tiles. Consecutive numbers go down the columns
/// of 8 rows of tiles, so that blocks that run at the same time read few rows and columns. Example:
/// of 10 rows and 2 columns, 0-7 are rows 0-7 of column 0, 8-15 are rows 0-7 of column 1, 16-17 are
/// rows 8-9 of column 0, 18-19 are rows 8-9 of column 1.
__device__ __forceinline__ Tile tile_at(int number, int rows, int columns) {
  constexpr int group = 8;
  const int matrix = number / (rows * columns);
  number -= matrix * (rows * columns);
  const int first_row = number / (group * columns) * group;
  const int rows_of_group = min(rows - first_row, group);
  number -= first_row * columns;
  const int column = number / rows_of_group;
  return {matrix, first_row + number - column * rows_of_group, column};
}

/// Adds neighbours in shared memory; `from` is aligned to 4 or 2 elements if that divides count.
template <int count>
__device__ void add(float (&values)[count], const float* from) {
  constexpr int width = count % 4 == 0 ? 4 : count % 2 == 0 ? 2 : 1;
  struct alignas(width * sizeof(float)) Few {
    float x[width];
  };
#pragma unroll
  for (int i = 0; i < count; i += width) {
    const Few few = *reinterpret_cast<const Few*>(from + i);
#pragma unroll
    for (int e = 0; e < width; ++e) values[i + e] += few.x[e];
  }
}

/// The epilogue of a product. Rows are aligned to as many elements as are accessed at a time.
struct Results {
  const void* bias = nullptr;
  void* d = nullptr;
  void* sum = nullptr;
  Activation activation = Activation::none;
  const void* other = nullptr;
  Combine combine = Combine::add;
};

inline Results results_of(const Gemm& gemm) {
  return {gemm.bias, gemm.d, gemm.sum, gemm.activation, gemm.other, gemm.combine};
}

/// Adds the bias to neighbours in a row, writes the sums if wanted, and the results, of type T.
template <class T, int count>
__device__ void finish(const Results& results, float (&values)[count], std::int64_t at,
                       int column) {
  struct alignas(count * sizeof(T)) Few {
    T x[count];
  };
  const auto write = [&](void* to) {
    Few few;
#pragma unroll
    for (int i = 0; i < count; ++i) few.x[i] = store<T>(values[i]);
    *reinterpret_cast<Few*>(static_cast<T*>(to) + at) = few;
  };
  if (results.bias != nullptr) {
    const Few few = *reinterpret_cast<const Few*>(static_cast<const T*>(results.bias) + column);
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] += load(few.x[i]);
  }
  if (results.sum != nullptr) write(results.sum);
  // The operations on one element wait for each other; those on several elements overlap.
  visit_activation(results.activation, [&](auto constant) {
#pragma unroll
    for (float& value : values) value = activated_fast<constant.value, float>(value);
  });
  if (results.other != nullptr) {
    const Few few = *reinterpret_cast<const Few*>(static_cast<const T*>(results.other) + at);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      values[i] = combined(results.combine, values[i], load(few.x[i]));
    }
  }
  write(results.d);
}

}  // namespace cudarelu::gpu

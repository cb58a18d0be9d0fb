#pragma once

#include <limits>

#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct GridCluster {
  static constexpr OpSpec spec{
      .signature =
          "grid_cluster(pos: T[n, d], size: T[d] > 0, start: T[d]? = min(pos), "
          "end: T[d]? = max(pos)) -> cluster: i64[n]",
      .summary =
          "The index of the grid cell of each point: i0 + n0 * (i1 + n1 * (i2 + ...)), where "
          "i = trunc((pos - start) / size) and n = trunc((end - start) / size) + 1 in each "
          "dimension. NaN and quotients that do not fit int64 become "
          "-2^63. If the total number of cells does not fit int64, the CPU reports an error. CUDA "
          "does not check values: sums and products wrap around, and sizes may be 0 or less.",
      .dtypes = floating_types,
      .onnx_alias = {"custom", "torch_cluster_grid"},
      .definition = R"(axis0 = Constant<value_ints = [0]>()
                       axis1 = Constant<value_ints = [1]>()
                       zero = Constant<value_int = 0>()
                       one = Constant<value_int = 1>()
                       extent = Sub(end, start)
                       extent_in_cells = Div(extent, size)
                       last_cell = Cast<to = 7>(extent_in_cells)
                       counts = Add(last_cell, one)
                       d = Size(size)
                       dims = Range(zero, d, one)
                       dims_row = Unsqueeze(dims, axis0)
                       dims_column = Unsqueeze(dims, axis1)
                       is_before = Less(dims_row, dims_column)
                       factors = Where(is_before, counts, one)
                       strides = ReduceProd<keepdims = 0>(factors, axis1)
                       distance = Sub(pos, start)
                       distance_in_cells = Div(distance, size)
                       cells = Cast<to = 7>(distance_in_cells)
                       terms = Mul(cells, strides)
                       cluster = ReduceSum<keepdims = 0>(terms, axis1))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

/// Truncates a quotient as x86 does, on every device: NaN and numbers that do not fit int64 give
/// the lowest int64.
template <class C>
CUDARELU_FN std::int64_t truncated(C quotient) {
  // Conversions to int32 are faster.
  if (quotient > C(-0x1p31) && quotient < C(0x1p31)) return static_cast<std::int32_t>(quotient);
  return quotient >= C(-0x1p63) && quotient < C(0x1p63) ? static_cast<std::int64_t>(quotient)
                                                        : std::numeric_limits<std::int64_t>::min();
}

/// a + b * c modulo 2^64.
CUDARELU_FN std::int64_t wrapping_sum(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) +
                                   static_cast<std::uint64_t>(b) * static_cast<std::uint64_t>(c));
}

}  // namespace cudarelu::ops

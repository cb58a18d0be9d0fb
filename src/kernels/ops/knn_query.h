#pragma once

#include "batches.h"
#include "cudarelu/kernel.h"

namespace cudarelu::ops {

struct KnnQuery {
  static constexpr OpSpec spec{
      .signature =
          "knn_query(xyz: T[n, 3], offset: offsets(n)[b], new_xyz: T[m, 3]? = xyz, "
          "new_offset: offsets(m)[b]? = offset, *, nsample: int = 16 in [1, 1024]) "
          "-> (idx: i32[m, nsample], distance: T[m, nsample])",
      .summary =
          "The nsample nearest points of each query in its batch, nearest first; at the same "
          "distance, the lower index first. If there are fewer, idx is -1 and distance is inf. "
          "Squared distances are computed in float32, or in float64 for T = float64; a point whose "
          "squared distance overflows is ignored. Points and queries past the last offset belong "
          "to no batch.",
      .dtypes = floating_types,
      .onnx_alias = {"custom", "knnquery", "nsample, xyz, offset, new_xyz, new_offset"},
      .definition = R"(
          zero = Constant<value_int = 0>()
          one = Constant<value_int = 1>()
          none = Constant<value_int = -1>()
          axis0 = Constant<value_ints = [0]>()
          axis1 = Constant<value_ints = [1]>()
          axis2 = Constant<value_ints = [2]>()
          n = Shape<start = 0, end = 1>(xyz)
          m = Shape<start = 0, end = 1>(new_xyz)
          n_scalar = Squeeze(n)
          m_scalar = Squeeze(m)
          points = Range(zero, n_scalar, one)
          queries = Range(zero, m_scalar, one)
          points_column = Unsqueeze(points, axis1)
          queries_column = Unsqueeze(queries, axis1)
          ends = Cast<to = 7>(offset)
          new_ends = Cast<to = 7>(new_offset)
          ends_row = Unsqueeze(ends, axis0)
          new_ends_row = Unsqueeze(new_ends, axis0)
          ended = GreaterOrEqual(points_column, ends_row)
          new_ended = GreaterOrEqual(queries_column, new_ends_row)
          ended_int = Cast<to = 7>(ended)
          new_ended_int = Cast<to = 7>(new_ended)
          batch_column = ReduceSum<keepdims = 1>(ended_int, axis1)
          new_batch = ReduceSum<keepdims = 1>(new_ended_int, axis1)
          batch = Transpose(batch_column)
          batches = Size(offset)
          same = Equal(new_batch, batch)
          inside = Less(new_batch, batches)
          xyz_exact = Cast<to = 11>(xyz)
          new_xyz_exact = Cast<to = 11>(new_xyz)
          xyz_row = Unsqueeze(xyz_exact, axis0)
          new_xyz_column = Unsqueeze(new_xyz_exact, axis1)
          delta = Sub(new_xyz_column, xyz_row)
          squares = Mul(delta, delta)
          squared = ReduceSum<keepdims = 0>(squares, axis2)
          zero_exact = Cast<to = 11>(zero)
          infinity = Reciprocal(zero_exact)
          finite = Less(squared, infinity)
          in_batch = And(same, inside)
          found = And(in_batch, finite)
          candidates = Where(found, squared, infinity)
          k_scalar = Constant<value_int: int = @nsample>()
          k = Unsqueeze(k_scalar, axis0)
          padding_shape = Concat<axis = 0>(m, k)
          padding = Expand(infinity, padding_shape)
          padded = Concat<axis = 1>(candidates, padding)
          nearest, position = TopK<axis = -1, largest = 0, sorted = 1>(padded, k)
          missing = Equal(nearest, infinity)
          index = Where(missing, none, position)
          idx = Cast<to = 6>(index)
          distance_exact = Sqrt(nearest)
          distance = CastLike(distance_exact, xyz))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

/// The points of the batch of query `query`; none if it is past the last offset.
CUDARELU_FN Batch batch_of_query(std::int64_t query, const std::int32_t* new_offset,
                                 const std::int32_t* offset, std::int64_t batches,
                                 std::int64_t size) {
  const std::int64_t number = batch_number(query, new_offset, batches);
  return number == batches ? Batch{0, 0} : batch_of(number, offset, size);
}

/// The same operations in the same order on every device.
template <class T>
CUDARELU_FN Compute<T> squared_distance(const T* a, const T* b) {
  const Compute<T> x = load(a[0]) - load(b[0]);
  const Compute<T> y = load(a[1]) - load(b[1]);
  const Compute<T> z = load(a[2]) - load(b[2]);
  return x * x + y * y + z * z;
}

}  // namespace cudarelu::ops

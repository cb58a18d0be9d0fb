// The queries and the results of a call.
#pragma once

#include <cmath>

#include "cudarelu/types.h"
#include "ops/knn_query.h"
#include "ops/knn_query/neighbour.cuh"

namespace cudarelu::ops {

/// Numbers in memory of any dtype that is computed in C, so that searches are compiled for each C
/// only.
template <class C>
struct Reals {
  void* data;
  DType dtype;

  __device__ C operator[](std::int64_t i) const {
    if constexpr (std::is_same_v<C, float>) {
      if (dtype == DType::float16) return load(static_cast<const Half*>(data)[i]);
      if (dtype == DType::bfloat16) return load(static_cast<const BFloat16*>(data)[i]);
    }
    return static_cast<const C*>(data)[i];
  }
  __device__ void set(std::int64_t i, C value) const {
    if constexpr (std::is_same_v<C, float>) {
      if (dtype == DType::float16) {
        static_cast<Half*>(data)[i] = store<Half>(value);
        return;
      }
      if (dtype == DType::bfloat16) {
        static_cast<BFloat16*>(data)[i] = store<BFloat16>(value);
        return;
      }
    }
    static_cast<C*>(data)[i] = value;
  }
  __device__ void load_point(std::int64_t i, C (&at)[3]) const {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) at[axis] = (*this)[3 * i + axis];
  }
};

/// The queries of a call, and the batches of points.
template <class C>
struct Queries {
  Reals<C> new_xyz;
  const std::int32_t* new_offset;
  const std::int32_t* offset;
  std::int64_t batches;
  std::int64_t points;
  std::int64_t count;
  const std::int32_t* order;  // of the search; null: as given
  bool own;                   // the queries are the points

  __device__ std::int64_t at(std::int64_t place) const {
    return order == nullptr ? place : order[place];
  }
  __device__ Batch batch(std::int64_t query) const {
    return batch_of_query(query, new_offset, offset, batches, points);
  }
};

/// The results of a call.
template <class C>
struct Results {
  std::int32_t* idx;
  Reals<C> distance;
  int nsample;

  __device__ void write(std::int64_t query, int rank, const Neighbour<C>& found) const {
    const std::int64_t at = query * nsample + rank;
    idx[at] = found.index;
    distance.set(at, sqrt(found.distance));
  }
};

}  // namespace cudarelu::ops

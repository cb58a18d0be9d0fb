// The queries and the results of a call.
#pragma once

#include <cmath>

#include "ops/knn_query.h"
#include "ops/knn_query/neighbour.cuh"

namespace cudarelu::ops {

/// The queries of a call, and the batches of points.
template <class T>
struct Queries {
  const T* new_xyz;
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
template <class T>
struct Results {
  std::int32_t* idx;
  T* distance;
  int nsample;

  __device__ void write(std::int64_t query, int rank, const Neighbour<Compute<T>>& found) const {
    const std::int64_t at = query * nsample + rank;
    idx[at] = found.index;
    distance[at] = store<T>(sqrt(found.distance));
  }
};

}  // namespace cudarelu::ops

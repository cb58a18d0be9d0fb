// The queries and the results of a call.
#pragma once

#include <cmath>

#include "cudarelu/types.h"
#include "ops/knn_query.h"
#include "ops/knn_query/neighbour.cuh"

namespace cudarelu::ops {

/// float16 or bfloat16: searches are compiled once for both.
struct EitherHalf {};

/// The type for which searches of T are compiled.
template <class T>
using SearchType = std::conditional_t<sizeof(T) == 2, EitherHalf, T>;

/// Numbers in memory, which are computed in C.
template <class S>
struct Reals {
  using C = S;
  S* data;

  __device__ C operator[](std::int64_t i) const { return data[i]; }
  __device__ void set(std::int64_t i, C value) const { data[i] = value; }
};
template <>
struct Reals<EitherHalf> {
  using C = float;
  void* data;
  bool is_bfloat16;

  __device__ C operator[](std::int64_t i) const {
    return is_bfloat16 ? load(static_cast<const BFloat16*>(data)[i])
                       : load(static_cast<const Half*>(data)[i]);
  }
  __device__ void set(std::int64_t i, C value) const {
    if (is_bfloat16) {
      static_cast<BFloat16*>(data)[i] = store<BFloat16>(value);
    } else {
      static_cast<Half*>(data)[i] = store<Half>(value);
    }
  }
};

/// Numbers of type T.
template <class T>
Reals<SearchType<T>> reals(const void* data) {
  T* const numbers = static_cast<T*>(const_cast<void*>(data));
  if constexpr (sizeof(T) == 2) {
    return {numbers, std::is_same_v<T, BFloat16>};
  } else {
    return {numbers};
  }
}

/// The queries of a call, and the batches of points.
template <class S>
struct Queries {
  Reals<S> new_xyz;
  const std::int32_t* new_offset;
  const std::int32_t* offset;
  std::int64_t batches;
  std::int64_t points;
  std::int64_t count;
  const std::int32_t* order;  // of the search; null: as given
  bool own;                   // the queries are the points

  __device__ std::int64_t at(std::int64_t position) const {
    return order == nullptr ? position : order[position];
  }
  __device__ Batch batch(std::int64_t query) const {
    return batch_of_query(query, new_offset, offset, batches, points);
  }
};

/// The results of a call.
template <class S>
struct Results {
  std::int32_t* idx;
  Reals<S> distance;
  int nsample;

  __device__ void write(std::int64_t query, int rank,
                        const Neighbour<typename Reals<S>::C>& found) const {
    const std::int64_t at = query * nsample + rank;
    idx[at] = found.index;
    distance.set(at, sqrt(found.distance));
  }
};

}  // namespace cudarelu::ops

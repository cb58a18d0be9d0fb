// Batches of unequal sizes, of which int32 offsets are the ends, in kernels of all devices.
#pragma once

#include <cstdint>

#include "cudarelu/types.h"

namespace cudarelu::ops {

/// The items [begin, end) of one batch, within [0, size) for all values of offsets.
struct Batch {
  std::int64_t begin;
  std::int64_t end;
};

/// The number of the batch of item `item`; `batches` if it is past the last offset.
CUDARELU_FN std::int64_t batch_number(std::int64_t item, const std::int32_t* offset,
                                      std::int64_t batches) {
  std::int64_t low = 0;
  for (std::int64_t high = batches; low < high;) {
    const std::int64_t middle = (low + high) / 2;
    if (offset[middle] > item) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// The items of batch `number`.
CUDARELU_FN Batch batch_of(std::int64_t number, const std::int32_t* offset, std::int64_t size) {
  const std::int64_t begin = number == 0 ? 0 : offset[number - 1];
  const std::int64_t end = offset[number];
  return {begin > 0 ? begin : 0, end < size ? end : size};
}

}  // namespace cudarelu::ops

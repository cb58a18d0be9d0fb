// What the row-wise ops share on CUDA: a group of threads for each row, a warp or a whole block.
#pragma once

#include <limits>

#include "cuda/launch.cuh"
#include "types.h"

namespace cudarelu::cuda {

inline constexpr int row_block = 256;

/// The place of a thread: its row, and its position within the `group` threads of that row.
template <int group>
struct RowThread {
  std::int64_t row;
  int lane;
  __device__ RowThread()
      : row(static_cast<std::int64_t>(blockIdx.x) * (row_block / group) + threadIdx.x / group),
        lane(threadIdx.x % group) {}
};

/// Combines one value of each thread of the group; every thread gets the result. Where the group is
/// the block, this is a barrier: all of its threads must call.
template <int group, class C, class Combine>
__device__ C reduce_row(C value, C neutral, const Combine& combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  if constexpr (group > 32) {
    __shared__ C partial[group / 32];
    __syncthreads();  // the reduction before this one has been read
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = neutral;
#pragma unroll
    for (int i = 0; i < group / 32; ++i) value = combine(value, partial[i]);
  }
  return value;
}

template <int group, class C>
__device__ C sum_row(C value) {
  return reduce_row<group>(value, C(0), [](C a, C b) { return a + b; });
}

/// Launches `warp_kernel` where rows are short and `block_kernel` where they are long; both take
/// the number of rows and of columns last.
template <class Kernel, class... Arguments>
Status launch_rows(const Call& call, Kernel warp_kernel, Kernel block_kernel,
                   Arguments... arguments) {
  const TensorView& tensor = call.inputs[0];
  const std::int64_t columns = tensor.shape.back();
  if (tensor.size() == 0) return {};
  const std::int64_t rows = tensor.size() / columns;
  const bool short_rows = columns <= 1024;
  return launch(call, short_rows ? warp_kernel : block_kernel,
                blocks_for(rows, short_rows ? row_block / 32 : 1), row_block, 0, arguments..., rows,
                columns);
}

}  // namespace cudarelu::cuda

#include <cstdint>
#include <limits>

#include "cuda/launch.cuh"
#include "ops/knn_query.h"

namespace cudarelu::ops {
namespace {

constexpr int warps_per_block = 4;
constexpr unsigned all_lanes = 0xffffffffu;

/// A sorted list of the nearest points so far, in shared memory; a warp works on it together.
template <class C>
struct NearestList {
  C* distances;
  std::int32_t* indices;
  int size;

  /// Puts a point after those not farther, and drops the last.
  __device__ void insert(C distance, std::int32_t index, int lane) const {
    for (int base = (size - 1) / 32 * 32; base >= 0; base -= 32) {
      const int at = base + lane;
      const bool moves = at < size && distances[at] > distance;
      const bool shifts = moves && at > 0 && distances[at - 1] > distance;
      const C new_distance = shifts ? distances[at - 1] : distance;
      const std::int32_t new_index = shifts ? indices[at - 1] : index;
      __syncwarp();
      if (moves) {
        distances[at] = new_distance;
        indices[at] = new_index;
      }
      __syncwarp();
      if (!__any_sync(all_lanes, shifts && lane == 0)) return;  // its place was in this part
    }
  }
};

/// A warp for each query: 32 points a step, and those nearer than the farthest of the list go in.
template <class T>
__global__ void __launch_bounds__(warps_per_block * 32)
    nearest(const T* xyz, const std::int32_t* offset, const T* new_xyz,
            const std::int32_t* new_offset, std::int32_t* idx, T* distance, std::int64_t size,
            std::int64_t batches, std::int64_t queries, int nsample) {
  using C = Compute<T>;
  constexpr C infinity = std::numeric_limits<C>::infinity();
  extern __shared__ double shared[];
  cuda::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int64_t query = static_cast<std::int64_t>(blockIdx.x) * warps_per_block + warp;
  if (query >= queries) return;

  C* const distances = reinterpret_cast<C*>(shared);
  auto* const indices = reinterpret_cast<std::int32_t*>(distances + warps_per_block * nsample);
  const NearestList<C> list{distances + warp * nsample, indices + warp * nsample, nsample};
  for (int i = lane; i < nsample; i += 32) {
    list.distances[i] = infinity;
    list.indices[i] = -1;
  }
  __syncwarp();

  const Batch batch = batch_of_query(query, new_offset, offset, batches, size);
  C farthest = infinity;
  for (std::int64_t base = batch.begin; base < batch.end; base += 32) {
    const std::int64_t point = base + lane;
    const C squared =
        point < batch.end ? squared_distance(new_xyz + 3 * query, xyz + 3 * point) : infinity;
    for (unsigned nearer = __ballot_sync(all_lanes, squared < farthest); nearer != 0;
         nearer &= nearer - 1) {
      const int source = __ffs(static_cast<int>(nearer)) - 1;
      const C candidate = __shfl_sync(all_lanes, squared, source);
      if (!(candidate < farthest)) continue;
      list.insert(candidate, static_cast<std::int32_t>(base + source), lane);
      farthest = list.distances[nsample - 1];
    }
  }
  for (int i = lane; i < nsample; i += 32) {
    idx[query * nsample + i] = list.indices[i];
    distance[query * nsample + i] = store<T>(sqrt(list.distances[i]));
  }
}

}  // namespace

Status KnnQuery::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t queries = call.inputs[2].shape[0];
    if (queries == 0) return Status();
    const auto nsample = static_cast<int>(call.integer(0));
    const std::size_t shared =
        static_cast<std::size_t>(warps_per_block * nsample) * (sizeof(Compute<T>) + 4);
    const cuda::Grid grid{cuda::blocks_for(queries, warps_per_block), warps_per_block * 32, shared};
    return cuda::launch(call, nearest<T>, grid, static_cast<const T*>(call.inputs[0].data),
                        static_cast<const std::int32_t*>(call.inputs[1].data),
                        static_cast<const T*>(call.inputs[2].data),
                        static_cast<const std::int32_t*>(call.inputs[3].data),
                        static_cast<std::int32_t*>(call.outputs[0].data),
                        static_cast<T*>(call.outputs[1].data), call.inputs[0].shape[0],
                        call.inputs[1].shape[0], queries, nsample);
  });
}

}  // namespace cudarelu::ops

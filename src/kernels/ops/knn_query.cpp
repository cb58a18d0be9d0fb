#include "ops/knn_query.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace cudarelu::ops {

Status KnnQuery::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    constexpr C infinity = std::numeric_limits<C>::infinity();
    const auto* xyz = static_cast<const T*>(call.inputs[0].data);
    const auto* offset = static_cast<const std::int32_t*>(call.inputs[1].data);
    const auto* new_xyz = static_cast<const T*>(call.inputs[2].data);
    const auto* new_offset = static_cast<const std::int32_t*>(call.inputs[3].data);
    auto* idx = static_cast<std::int32_t*>(call.outputs[0].data);
    auto* distance = static_cast<T*>(call.outputs[1].data);
    const std::int64_t size = call.inputs[0].shape[0];
    const std::int64_t batches = call.inputs[1].shape[0];
    const std::int64_t queries = call.inputs[2].shape[0];
    const auto nsample = static_cast<std::size_t>(call.integer(0));

    const std::int64_t grain = std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(size, 1));
    call.execution.parallel_for(queries, grain, [&](std::int64_t first, std::int64_t last) {
      // Pairs compare by distance and then by index; the front of the heap is the worst.
      std::array<std::pair<C, std::int32_t>, 1024> heap;
      for (std::int64_t query = first; query < last; ++query) {
        const Batch batch = batch_of_query(query, new_offset, offset, batches, size);
        std::size_t count = 0;
        for (std::int64_t point = batch.begin; point < batch.end; ++point) {
          const C squared = squared_distance(new_xyz + 3 * query, xyz + 3 * point);
          if (!(squared < (count < nsample ? infinity : heap[0].first))) continue;
          if (count == nsample) std::pop_heap(heap.begin(), heap.begin() + count--);
          heap[count++] = {squared, static_cast<std::int32_t>(point)};
          std::push_heap(heap.begin(), heap.begin() + count);
        }
        std::sort_heap(heap.begin(), heap.begin() + count);
        std::fill(heap.begin() + count, heap.begin() + nsample, std::pair(infinity, -1));
        for (std::size_t i = 0; i < nsample; ++i) {
          const std::size_t at = static_cast<std::size_t>(query) * nsample + i;
          idx[at] = heap[i].second;
          distance[at] = store<T>(std::sqrt(heap[i].first));
        }
      }
    });
    return Status();
  });
}

}  // namespace cudarelu::ops

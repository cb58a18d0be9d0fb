#include <array>
#include <limits>

#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/workspace.h"
#include "ops/attention/engines.h"
#include "ops/attention/sm90_forward.cuh"

namespace cudarelu::ops::attention {
namespace {

/// With fewer queries than a warpgroup has rows, tiles are mostly empty. For up to 128 queries and
/// keys, there is one step of a tile, and blocks of four warps are faster (12 us instead of 23).
constexpr std::int64_t min_queries = 64;
constexpr std::int64_t min_size = 129;

/// Sets the number of the next tile.
__global__ void clear(int* number) {
  gpu::let_next_kernel_start();
  gpu::wait_for_previous_kernel();
  *number = 0;
}

bool takes(const Call& call, const Params& p) {
  const DType dtype = call.inputs[0].dtype;
  if (dtype != DType::float16 && dtype != DType::bfloat16) return false;
  if (p.mask.data != nullptr || p.queries < min_queries || p.keys == 0) return false;
  if (std::max(p.queries, p.keys) < min_size) return false;
  for (const std::int64_t width : {p.width, p.value_width}) {
    if (width < 8 || width > 256 || width % 8 != 0) return false;
  }
  // Hidden scores are -infinity times the scale.
  const auto scale = static_cast<float>(p.scale) * log2_e;
  if (!(scale > 0 && scale < std::numeric_limits<float>::infinity())) return false;
  constexpr std::int64_t most = std::numeric_limits<int>::max() / 2;  // the limit of coordinates
  const std::int64_t heads = p.batch * p.heads;
  if (p.queries > most || p.keys > most || heads > most / (p.queries / 64 + 1)) return false;
  for (const void* pointer :
       {call.inputs[0].data, call.inputs[1].data, call.inputs[2].data, call.outputs[0].data}) {
    if (gpu::misalignment(pointer) != 0) return false;
  }
  for (const Layout& layout : {p.q, p.k, p.v, p.y}) {
    if (!has_vectors<Half>(layout)) return false;
  }
  const int device = call.execution.device_index;
  return gpu::number_of<cudaDevAttrComputeCapabilityMajor>(device) == 9 &&
         gpu::number_of<cudaDevAttrComputeCapabilityMinor>(device) == 0;
}

/// The heads whose keys and values stay in the cache while all of their tiles are computed.
int heads_at_once(const Params& p) {
  if (!p.is_causal) return 1;
  constexpr std::int64_t cache = 16 << 20;
  const std::int64_t bytes = p.keys * (p.width + p.value_width) * 2;
  return static_cast<int>(
      std::min(p.batch * p.heads, std::max(cache / bytes, std::int64_t{1}) * p.group()));
}

template <class T, class P>
Status start(const Call& call, const Params& p, float* lse) {
  constexpr auto kernel = sm90::attend<T, P>;
  if (Status status = gpu::allow_shared_memory<kernel>(call, P::shared_bytes); !status.ok()) {
    return status;
  }
  sm90::Maps maps{};
  std::array results{sm90::describe(call, maps.q, 0, p.q, p.batch, P::rows),
                     sm90::describe(call, maps.k, 1, p.k, p.batch, P::keys),
                     sm90::describe(call, maps.v, 2, p.v, p.batch, P::keys)};
  for (Status& result : results) {
    if (!result.ok()) return std::move(result);
  }
  sm90::Schedule schedule{};
  schedule.row_tiles = static_cast<int>(gpu::ceil_div(p.queries, P::rows));
  schedule.heads = static_cast<int>(p.batch * p.heads);
  schedule.heads_of_item = Divisor(static_cast<int>(p.heads));
  schedule.heads_at_once = heads_at_once(p);
  schedule.tiles = schedule.row_tiles * schedule.heads;
  schedule.queries = static_cast<int>(p.queries);
  schedule.keys = static_cast<int>(p.keys);
  schedule.value_width = static_cast<int>(p.value_width);
  schedule.group = static_cast<int>(p.group());
  schedule.scale = static_cast<float>(p.scale) * log2_e;
  schedule.is_causal = p.is_causal;
  const int blocks = std::min(
      gpu::number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index), schedule.tiles);
  if (p.is_causal && schedule.tiles > blocks) {
    if (Status status = allocate(call, 1, schedule.next); !status.ok()) return status;
    if (Status status = gpu::launch(call, clear, {1, 1}, schedule.next); !status.ok())
      return status;
  }
  const auto data = [&](std::size_t i) { return static_cast<const T*>(call.inputs[i].data); };
  return gpu::launch(call, kernel, {static_cast<unsigned>(blocks), P::threads, P::shared_bytes},
                     maps, schedule, p, data(0), data(1), data(2),
                     static_cast<T*>(call.outputs[0].data), lse);
}

using sm90::ForwardConfig;

template <class T>
Status start(const Call& call, const Params& p, float* lse) {
  const std::int64_t width = std::max(p.width, p.value_width);
  // Tiles of 192 queries of short causal calls are mostly hidden or empty.
  const bool is_short = p.is_causal && p.queries <= 1024;
  if (width <= 64 && is_short) return start<T, ForwardConfig<64, 64, 128, 2, 2, 2>>(call, p, lse);
  if (width <= 64) return start<T, ForwardConfig<64, 64, 96, 3, 2, 3>>(call, p, lse);
  if (width <= 128) return start<T, ForwardConfig<128, 128, 128, 2, 1, 2>>(call, p, lse);
  return start<T, ForwardConfig<256, 256, 80, 2, 1, 2>>(call, p, lse);
}

}  // namespace

std::optional<Status> sm90_forward(const Call& call, const Params& p, float* lse) {
  if (!takes(call, p)) return std::nullopt;
  if (call.inputs[0].dtype == DType::float16) return start<Half>(call, p, lse);
  return start<BFloat16>(call, p, lse);
}

}  // namespace cudarelu::ops::attention

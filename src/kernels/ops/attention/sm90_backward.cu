#include <algorithm>
#include <array>
#include <limits>

#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/workspace.h"
#include "ops/attention/engines.h"
#include "ops/attention/sm90_backward.cuh"

namespace cudarelu::ops::attention {
namespace {

using sm90::BackwardConfig;
using sm90::GradientOf;

bool takes(const Call& call, const Params& p) {
  const DType dtype = call.inputs[0].dtype;
  if (dtype != DType::float16 && dtype != DType::bfloat16) return false;
  if (p.mask.data != nullptr || p.queries == 0 || p.keys == 0 || p.batch * p.heads == 0) {
    return false;
  }
  // Most of the tiles would be empty.
  if (p.queries <= 128 && p.keys <= 128) return false;
  for (const std::int64_t width : {p.width, p.value_width}) {
    if (width < 8 || width > 256 || width % 8 != 0) return false;
  }
  // Hidden scores are -infinity times the scale.
  const auto scale = static_cast<float>(p.scale) * log2_e;
  if (!(scale > 0 && scale < std::numeric_limits<float>::infinity())) return false;
  constexpr std::int64_t most = std::numeric_limits<int>::max() / 4;  // the limit of coordinates
  if (p.queries > most || p.keys > most) return false;
  if (p.batch * p.heads > most / ((p.queries + p.keys) / 64 + 2)) return false;
  for (std::size_t i = 0; i < 5; ++i) {
    if (gpu::misalignment(call.inputs[i].data) != 0) return false;
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (gpu::misalignment(call.outputs[i].data) != 0) return false;
  }
  for (const Layout& layout : {p.q, p.k, p.v, p.y, p.grad_y, p.grad_q, p.grad_k, p.grad_v}) {
    if (!has_vectors<Half>(layout)) return false;
  }
  const int device = call.execution.device_index;
  return gpu::number_of<cudaDevAttrComputeCapabilityMajor>(device) == 9 &&
         gpu::number_of<cudaDevAttrComputeCapabilityMinor>(device) == 0;
}

template <class P>
sm90::BackwardTiles intensity_of(const Params& p) {
  const std::int64_t heads = p.batch * (P::of_keys ? p.kv_heads : p.heads);
  const std::int64_t rows = P::of_keys ? p.keys : p.queries;
  const std::int64_t columns = P::of_keys ? p.queries : p.keys;
  // Of causal order, the tiles of these heads are computed together, the long ones first.
  constexpr std::int64_t cache = 16 << 20;
  const std::int64_t bytes = columns * (p.width + p.value_width) * 2;
  const std::int64_t in_cache =
      P::of_keys ? cache / (bytes * p.group()) : cache / bytes * p.group();
  const std::int64_t at_once = p.is_causal ? std::clamp<std::int64_t>(in_cache, 1, heads) : 1;
  return {static_cast<int>(gpu::ceil_div(rows, P::rows)), static_cast<int>(heads),
          static_cast<int>(at_once), static_cast<int>(rows), static_cast<int>(columns)};
}

/// K and V are the same plan if it gives both gradients.
template <class T, class K, class V, class Q>
Status start(const Call& call, const Params& p) {
  constexpr auto kernel = sm90::differentiate<T, K, V, Q>;
  constexpr int shared_bytes = std::max({K::shared_bytes, V::shared_bytes, Q::shared_bytes});
  if (Status status = gpu::allow_shared_memory<kernel>(call, shared_bytes); !status.ok()) {
    return status;
  }
  sm90::GradientMaps key_maps{}, query_maps{};
  const auto describe = [&](sm90::Pair& pair, bool of_keys, int box) {
    Status status = of_keys ? sm90::describe(call, pair.first, 2, p.k, p.batch, box)
                            : sm90::describe(call, pair.first, 1, p.q, p.batch, box);
    if (!status.ok()) return status;
    return of_keys ? sm90::describe(call, pair.second, 3, p.v, p.batch, box)
                   : sm90::describe(call, pair.second, 0, p.grad_y, p.batch, box);
  };
  std::array results{
      describe(key_maps.own, true, K::rows), describe(key_maps.other, false, K::columns),
      describe(query_maps.own, false, Q::rows), describe(query_maps.other, true, Q::columns)};
  for (Status& result : results) {
    if (!result.ok()) return std::move(result);
  }
  const auto output = [&](std::size_t i) { return static_cast<T*>(call.outputs[i].data); };
  const auto inputs = gradient_inputs<T>(call);
  const std::int64_t heads = p.batch * p.heads;
  sm90::Stats stats{nullptr, static_cast<int>(gpu::ceil_div(p.queries, K::columns)), K::columns};
  const std::int64_t padded = heads * stats.tiles * K::columns;
  if (Status status = allocate(call, 2 * padded, stats.data); !status.ok()) return status;
  constexpr int lanes = K::width / 8;
  Status status =
      gpu::launch(call, sm90::prepare<T, lanes>, {gpu::blocks_for(padded * lanes, 256), 256}, stats,
                  inputs, p, Divisor(static_cast<int>(p.heads)), heads);
  if (!status.ok()) return status;
  sm90::GradientCall work{};
  work.keys = intensity_of<K>(p);
  work.queries = intensity_of<Q>(p);
  work.key_blocks = work.keys.row_tiles * work.keys.heads;
  work.heads_of_item = Divisor(static_cast<int>(p.heads));
  work.kv_heads_of_item = Divisor(static_cast<int>(p.kv_heads));
  work.group = static_cast<int>(p.group());
  work.log_scale = static_cast<float>(p.scale) * log2_e;
  work.scale = static_cast<float>(p.scale);
  work.is_causal = p.is_causal;
  const int blocks =
      (K::gives_values ? 1 : 2) * work.key_blocks + work.queries.row_tiles * work.queries.heads;
  return gpu::launch(call, kernel, {static_cast<unsigned>(blocks), K::threads, shared_bytes},
                     key_maps, query_maps, work, stats, p, inputs,
                     sm90::Gradients<T>{output(0), output(1), output(2)});
}

template <class T>
Status start(const Call& call, const Params& p) {
  const std::int64_t width = std::max(p.width, p.value_width);
  if (width <= 64) {
    using K = BackwardConfig<GradientOf::keys_and_values, 64, 96, 8>;
    return start<T, K, K, BackwardConfig<GradientOf::queries, 64, 128, 8>>(call, p);
  }
  if (width <= 128) {
    using K = BackwardConfig<GradientOf::keys_and_values, 128, 64, 8>;
    return start<T, K, K, BackwardConfig<GradientOf::queries, 128, 128, 4>>(call, p);
  }
  using K = BackwardConfig<GradientOf::keys, 256, 64, 3>;
  using V = BackwardConfig<GradientOf::values, 256, 64, 5>;
  return start<T, K, V, BackwardConfig<GradientOf::queries, 256, 64, 3>>(call, p);
}

}  // namespace

std::optional<Status> sm90_backward(const Call& call, const Params& p) {
  if (!takes(call, p)) return std::nullopt;
  if (call.inputs[0].dtype == DType::float16) return start<Half>(call, p);
  return start<BFloat16>(call, p);
}

}  // namespace cudarelu::ops::attention

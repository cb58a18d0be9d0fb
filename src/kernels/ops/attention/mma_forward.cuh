// The plans and the launch of the kernel of mma_kernel.cuh.
#pragma once

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <optional>

#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/workspace.h"
#include "ops/attention/engines.h"
#include "ops/attention/mma_kernel.cuh"

namespace cudarelu::ops::attention::mma {

/// 64 rows: several small blocks on a multiprocessor hide each other's latencies.
template <int width>
using Small = MmaConfig<width, 1, 4, 1, width == 256 ? 32 : 64, 2,
                        width == 32   ? 5
                        : width == 64 ? 4
                                      : 2>;

/// 128 rows, of which each warp has 32, so that it loads half as much from shared memory.
template <int width>
using Large = MmaConfig<width, 2, 4, 1, 64, 2, 2>;

inline constexpr std::int64_t max_rows = INT_MAX - 256;  // tiles may go past the end

/// Whether the kernel can compute a call.
inline bool takes(const Call& call, const Params& p) {
  const DType dtype = call.inputs[0].dtype;
  const auto fits = [](std::int64_t width) { return width > 0 && width <= 256 && width % 8 == 0; };
  const auto aligned = [](const TensorView& t) { return gpu::misalignment(t.data) == 0; };
  const float factor = static_cast<float>(p.scale) * log2_e;
  return (dtype == DType::float16 || dtype == DType::bfloat16) && fits(p.width) &&
         fits(p.value_width) && p.queries <= max_rows && p.keys <= max_rows &&
         aligned(call.inputs[0]) && aligned(call.inputs[1]) && aligned(call.inputs[2]) &&
         aligned(call.outputs[0]) &&
         std::ranges::all_of(std::array{p.q, p.k, p.v, p.y}, has_vectors<Half>) &&
         p.batch * p.heads <= max_rows && std::isnormal(factor) &&
         factor > 0 &&  // bases are relative to the largest product
         gpu::is_compiled_for(80, call.execution.device_index);
}

inline Arguments arguments_of(const Call& call, const Params& p, float* lse, bool joins_heads) {
  Arguments args{};
  args.q = call.inputs[0].data;
  args.k = call.inputs[1].data;
  args.v = call.inputs[2].data;
  args.y = call.outputs[0].data;
  args.lse = lse;
  args.params = p;
  args.heads = joins_heads ? static_cast<int>(p.group()) : 1;
  args.stacks = Divisor(joins_heads ? 1 : static_cast<int>(p.group()));
  args.queries = Divisor(static_cast<int>(p.queries));
  args.item_heads = Divisor(static_cast<int>(p.heads));
  args.rows = static_cast<int>(p.queries) * args.heads;
  args.factor = static_cast<float>(p.scale) * log2_e;
  return args;
}

/// Combines the results of parts of the keys.
Status add_parts(const Call& call, const Arguments& args);

/// For stacks of up to 16 rows. Like launch_plan().
std::optional<Status> attend_few(const Call& call, const Arguments& args);

/// Launches the kernel of a plan, with the rows of args. Returns nothing if there are too many
/// blocks or the device has too little shared memory.
///
/// The keys are divided in parts if the blocks for one item of a batch are too few for the device.
/// So the number of parts, and with it the rounding of a result, depends on the numbers of heads,
/// queries and keys and on the number of multiprocessors, but not on the size of the batch. A part
/// has at least some hundreds of keys, so that its results take little time.
template <class T, class P>
std::optional<Status> launch_plan(const Call& call, Arguments args) {
  const Params& p = args.params;
  const int device = call.execution.device_index;
  const std::int64_t stacks = p.heads / args.heads;  // of an item
  const std::int64_t tiles = gpu::ceil_div(args.rows, P::rows);
  const std::int64_t visible = p.is_causal ? std::min(p.keys, p.queries) : p.keys;
  const std::int64_t key_tiles = gpu::ceil_div(visible, P::keys);
  // Plans of 64 rows and of 128 have the same parts and results.
  constexpr int rows_of_unit = std::min(P::rows, 64);
  const int unit = std::min(args.rows, rows_of_unit);
  const std::int64_t blocks = stacks * gpu::ceil_div(args.rows, rows_of_unit);
  const std::int64_t slots_of_gpu = gpu::number_of<cudaDevAttrMultiProcessorCount>(device) *
                                    std::int64_t{P::key_warps > 1 ? 2 : 1};
  const std::int64_t wanted = std::max<std::int64_t>(slots_of_gpu / blocks, 1);
  const int min_keys = std::clamp(128 * unit, 256, std::max(1024, 32 * unit));
  const std::int64_t part =
      std::max<std::int64_t>(gpu::ceil_div(key_tiles, wanted), min_keys / P::keys);
  const std::int64_t parts = std::max<std::int64_t>(gpu::ceil_div(key_tiles, part), 1);
  const std::int64_t rows = p.batch * p.heads * p.queries;
  if (p.batch * stacks * tiles * parts > INT_MAX || (parts > 1 && rows > INT_MAX) ||
      gpu::number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device) < P::shared_bytes) {
    return std::nullopt;
  }
  args.tiles = Divisor(static_cast<int>(tiles));
  args.tiles_of_part = static_cast<int>(part);
  args.parts.count = Divisor(static_cast<int>(parts));
  if (parts > 1) {
    Status scales = allocate(call, rows * parts, args.parts.scales);
    if (!scales.ok()) return scales;
    Status sums = allocate(call, rows * parts * p.value_width, args.parts.sums);
    if (!sums.ok()) return sums;
  }
  const auto start = [&]<bool masked>(std::bool_constant<masked>) {
    constexpr auto kernel = attend_tiles<T, P, masked>;
    Status status = gpu::allow_shared_memory<kernel>(call, P::shared_bytes);
    if (!status.ok()) return status;
    const auto blocks = static_cast<unsigned>(p.batch * stacks * tiles * parts);
    return gpu::launch(call, kernel, {blocks, P::threads, P::shared_bytes}, args);
  };
  Status status = [&] {
    if constexpr (P::takes_mask) {
      if (p.mask.data != nullptr) return start(std::true_type{});
    }
    return start(std::false_type{});
  }();
  if (!status.ok() || parts == 1) return status;
  return add_parts(call, args);
}

/// Launches the kernel of a plan for packed sequences, whose keys are not divided.
template <class T, class P>
std::optional<Status> launch_packed(const Call& call, Arguments args, const Sequences& sequences) {
  const Params& p = args.params;
  const std::int64_t slots = tile_slots(p.queries, sequences.count, P::rows);
  if (slots > INT_MAX / p.heads ||
      gpu::number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(call.execution.device_index) <
          P::shared_bytes + static_cast<int>(sizeof(PackedArguments)) + 16) {
    return std::nullopt;
  }
  args.tiles = Divisor(static_cast<int>(slots));
  args.tiles_of_part = INT_MAX / P::keys;
  args.parts.count = Divisor(1);
  constexpr auto kernel = attend_packed_tiles<T, P>;
  if (Status status = gpu::allow_shared_memory<kernel>(call, P::shared_bytes); !status.ok()) {
    return status;
  }
  const auto blocks = static_cast<unsigned>(p.heads * slots);
  return gpu::launch(call, kernel, {blocks, P::threads, P::shared_bytes}, args, sequences);
}

/// Calls f(std::integral_constant<int, width>) with the compiled width for keys and values, `least`
/// or more.
template <int least, class F>
auto visit_width(const Params& p, const F& f) {
  const std::int64_t width = std::max(p.width, p.value_width);
  if constexpr (least <= 32) {
    if (width <= 32) return f(std::integral_constant<int, 32>{});
  }
  if (width <= 64) return f(std::integral_constant<int, 64>{});
  if (width <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

}  // namespace cudarelu::ops::attention::mma

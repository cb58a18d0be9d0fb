// The choice of a plan for the kernel of mma_kernel.cuh, whose head describes it.
#include <algorithm>
#include <array>
#include <cmath>

#include "cudarelu/cuda/alignment.h"
#include "ops/attention/engines.h"
#include "ops/attention/mma_forward.cuh"

namespace cudarelu::ops::attention {
namespace {

using namespace mma;

/// 64 rows: several small blocks on a multiprocessor hide each other's latencies.
template <int width>
using Small = Plan<width, 1, 4, 1, width == 256 ? 32 : 64, 2,
                   width == 32   ? 5
                   : width == 64 ? 4
                                 : 2>;

/// 128 rows, of which each warp has 32, so that it loads half as much from shared memory.
template <int width>
using Large = Plan<width, 2, 4, 1, 64, 2, 2>;

constexpr std::int64_t most_rows = INT_MAX - 256;  // tiles may go past the end

bool takes(const Call& call, const Problem& p) {
  const DType dtype = call.inputs[0].dtype;
  const auto fits = [](std::int64_t width) { return width > 0 && width <= 256 && width % 8 == 0; };
  const auto aligned = [](const TensorView& t) { return cuda::misalignment(t.data) == 0; };
  const float factor = static_cast<float>(p.scale) * log2_e;
  return (dtype == DType::float16 || dtype == DType::bfloat16) && fits(p.width) &&
         fits(p.value_width) && p.queries <= most_rows && p.keys <= most_rows &&
         aligned(call.inputs[0]) && aligned(call.inputs[1]) && aligned(call.inputs[2]) &&
         aligned(call.outputs[0]) &&
         std::ranges::all_of(std::array{p.q, p.k, p.v, p.y}, has_vectors<Half>) &&
         p.batch * p.heads <= most_rows && std::isnormal(factor) &&
         factor > 0 &&  // bases are relative to the largest product
         cuda::is_compiled_for(80, call.execution.device_index);
}

/// Whether the elements of the mask for keys 2 i and 2 i + 1 are one aligned word.
bool has_pairs(const Problem& p) {
  const Mask& mask = p.mask;
  bool even = p.keys % 2 == 0 && mask.query_stride % 2 == 0 && mask.head_stride % 2 == 0;
  for (int i = 0; i < mask.leading; ++i) even = even && mask.strides[i] % 2 == 0;
  const std::uintptr_t bytes = mask.is_bool ? 2 : 4;
  return even && mask.key_stride == 1 && reinterpret_cast<std::uintptr_t>(mask.data) % bytes == 0;
}

template <class T>
std::optional<Status> attend(const Call& call, const Arguments& args) {
  if (args.rows <= 16) return attend_few(call, args);
  const Problem& p = args.problem;
  return visit_width(p, [&]<int width>(std::integral_constant<int, width>) {
    if constexpr (width < 256) {
      const std::int64_t tiles =
          p.batch * p.heads / args.heads * cuda::ceil_div(args.rows, Large<width>::rows);
      const int multiprocessors =
          cuda::number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
      // The results do not depend on the choice: both plans have the same tiles and parts of keys.
      if (p.mask.data == nullptr && p.keys > 256 && tiles >= 2 * multiprocessors) {
        return launch_plan<T, Large<width>>(call, args);
      }
    }
    return launch_plan<T, Small<width>>(call, args);
  });
}

template <class T>
std::optional<Status> attend_packed(const Call& call, const Arguments& args,
                                    const Sequences& sequences) {
  const Problem& p = args.problem;
  return visit_width(p, [&]<int width>(std::integral_constant<int, width>) {
    if constexpr (width < 256) {
      // As above, the results do not depend on the choice.
      const std::int64_t mean = p.queries / std::max<std::int64_t>(sequences.count, 1);
      const int multiprocessors =
          cuda::number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
      if (mean > 256 && p.heads * (p.queries / Large<width>::rows) >= 2 * multiprocessors) {
        return launch_packed<T, Large<width>>(call, args, sequences);
      }
    }
    return launch_packed<T, Small<width>>(call, args, sequences);
  });
}

Arguments arguments_of(const Call& call, const Problem& p, float* lse, bool joins_heads) {
  Arguments args{};
  args.q = call.inputs[0].data;
  args.k = call.inputs[1].data;
  args.v = call.inputs[2].data;
  args.y = call.outputs[0].data;
  args.lse = lse;
  args.problem = p;
  args.heads = joins_heads ? static_cast<int>(p.group()) : 1;
  args.stacks = Divisor(joins_heads ? 1 : static_cast<int>(p.group()));
  args.queries = Divisor(static_cast<int>(p.queries));
  args.item_heads = Divisor(static_cast<int>(p.heads));
  args.rows = static_cast<int>(p.queries) * args.heads;
  args.factor = static_cast<float>(p.scale) * log2_e;
  return args;
}

}  // namespace

std::optional<Status> mma_forward(const Call& call, const Problem& p, float* lse) {
  if (!takes(call, p)) return std::nullopt;
  const bool joins_heads =
      p.queries < 64 && p.group() > 1 && !p.is_causal && p.group() * p.queries <= most_rows;
  Arguments args = arguments_of(call, p, lse, joins_heads);
  args.mask_in_pairs = has_pairs(p);
  if (call.inputs[0].dtype == DType::float16) return attend<Half>(call, args);
  return attend<BFloat16>(call, args);
}

std::optional<Status> mma_packed_forward(const Call& call, const Problem& p,
                                         const Sequences& sequences, float* lse) {
  if (!takes(call, p) || sequences.count >= INT_MAX) return std::nullopt;
  const Arguments args = arguments_of(call, p, lse, false);
  if (call.inputs[0].dtype == DType::float16) return attend_packed<Half>(call, args, sequences);
  return attend_packed<BFloat16>(call, args, sequences);
}

}  // namespace cudarelu::ops::attention

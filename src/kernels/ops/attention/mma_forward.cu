// The choice of a plan for the kernel of mma_kernel.cuh, whose head describes it, for sequences
// that are not packed.
#include "ops/attention/mma_forward.cuh"

namespace cudarelu::ops::attention {
namespace {

using namespace mma;

/// Whether the elements of the mask for keys 2 i and 2 i + 1 are one aligned word.
bool has_pairs(const Params& p) {
  const Mask& mask = p.mask;
  bool even = p.keys % 2 == 0 && mask.query_stride % 2 == 0 && mask.head_stride % 2 == 0;
  for (int i = 0; i < mask.leading; ++i) even = even && mask.strides[i] % 2 == 0;
  const std::uintptr_t bytes = mask.is_bool ? 2 : 4;
  return even && mask.key_stride == 1 && reinterpret_cast<std::uintptr_t>(mask.data) % bytes == 0;
}

template <class T>
std::optional<Status> attend(const Call& call, const Arguments& args) {
  if (args.rows <= 16) return attend_few(call, args);
  const Params& p = args.params;
  const int device = call.execution.device_index;
  const auto launch = [&]<int width>(std::integral_constant<int, width>) {
    if constexpr (width < 256) {
      const std::int64_t tiles =
          p.batch * p.heads / args.heads * gpu::ceil_div(args.rows, Large<width>::rows);
      const int multiprocessors = gpu::number_of<cudaDevAttrMultiProcessorCount>(device);
      // The results do not depend on the choice: both plans have the same tiles and parts of keys.
      if (p.mask.data == nullptr && p.keys > 256 && tiles >= 2 * multiprocessors &&
          has_config<Large<width>>(gpu::compiled_architecture(device))) {
        return launch_plan<T, Large<width>>(call, args);
      }
    }
    return launch_plan<T, Small<width>>(call, args);
  };
  // Nor do they depend on the width. With a mask there is no plan for 32, to compile less.
  return p.mask.data == nullptr ? visit_width<32>(p, launch) : visit_width<64>(p, launch);
}

}  // namespace

std::optional<Status> mma_forward(const Call& call, const Params& p, float* lse) {
  if (!takes(call, p)) return std::nullopt;
  const bool joins_heads =
      p.queries < 64 && p.group() > 1 && !p.is_causal && p.group() * p.queries <= max_rows;
  Arguments args = arguments_of(call, p, lse, joins_heads);
  args.mask_in_pairs = has_pairs(p);
  if (call.inputs[0].dtype == DType::float16) return attend<Half>(call, args);
  return attend<BFloat16>(call, args);
}

}  // namespace cudarelu::ops::attention

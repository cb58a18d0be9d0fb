// The choice of a plan for packed sequences, for the kernel of mma_kernel.cuh.
#include "ops/attention/mma_forward.cuh"

namespace cudarelu::ops::attention {
namespace {

using namespace mma;

template <class T>
std::optional<Status> attend_packed(const Call& call, const Arguments& args,
                                    const Sequences& sequences) {
  const Params& p = args.params;
  return visit_width<32>(p, [&]<int width>(std::integral_constant<int, width>) {
    if constexpr (width < 256) {
      // The results do not depend on the choice.
      const std::int64_t mean = p.queries / std::max<std::int64_t>(sequences.count, 1);
      const int multiprocessors =
          gpu::number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
      if (mean > 256 && p.heads * (p.queries / Large<width>::rows) >= 2 * multiprocessors) {
        return launch_packed<T, Large<width>>(call, args, sequences);
      }
    }
    return launch_packed<T, Small<width>>(call, args, sequences);
  });
}

}  // namespace

std::optional<Status> mma_packed_forward(const Call& call, const Params& p,
                                         const Sequences& sequences, float* lse) {
  if (!takes(call, p) || sequences.count >= INT_MAX) return std::nullopt;
  const Arguments args = arguments_of(call, p, lse, false);
  if (call.inputs[0].dtype == DType::float16) return attend_packed<Half>(call, args, sequences);
  return attend_packed<BFloat16>(call, args, sequences);
}

}  // namespace cudarelu::ops::attention

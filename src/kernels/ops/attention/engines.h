// The kernels of attention on CUDA, from the most special one to the plain one, which takes every
// call. Each engine returns nothing for a call that it does not take.
#pragma once

#include <optional>

#include "ops/attention/params.h"

namespace cudarelu::ops::attention {

/// Computes outputs[0] from the inputs q, k, v and attn_mask; and `lse`, which may be null.
using Forward = std::optional<Status>(const Call& call, const Params& params, float* lse);

/// Computes the gradients of q, k and v, the outputs, from grad_y, q, k, v, y, lse and attn_mask.
using Backward = std::optional<Status>(const Call& call, const Params& params);

/// The same for packed sequences.
using PackedForward = std::optional<Status>(const Call& call, const Params& params,
                                            const Sequences& sequences, float* lse);
using PackedBackward = std::optional<Status>(const Call& call, const Params& params,
                                             const Sequences& sequences);

/// float16 and bfloat16 on compute capability 9.0: warpgroups and the copy engine.
#ifdef CUDARELU_WITH_HOPPER
Forward sm90_forward;
Backward sm90_backward;
#else  // not compiled for compute capability 9.0
inline std::optional<Status> sm90_forward(const Call&, const Params&, float*) {
  return std::nullopt;
}
inline std::optional<Status> sm90_backward(const Call&, const Params&) { return std::nullopt; }
#endif

/// float16 and bfloat16 from compute capability 8.0 on: the matrix instructions of warps.
Forward mma_forward;
Backward mma_backward;
PackedForward mma_packed_forward;
PackedBackward mma_packed_backward;

/// float32 and float64: tiles in shared memory, multiplied exactly.
Forward tiled_forward;
Backward tiled_backward;
PackedForward tiled_packed_forward;
PackedBackward tiled_packed_backward;

/// Sets `lse` to the input of a gradient in float64, in a workspace, with the digits that float32
/// has not; see exact_lse(). `sequences` is null if they are not packed.
Status find_exact_lse(const Call& call, const Params& params, const Sequences* sequences,
                      const double*& lse);

}  // namespace cudarelu::ops::attention

// The matrix product on the CPU.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::cpu {

/// Computes the product by the host's GEMM, and what follows it while the rows are in the cache.
/// float16 and bfloat16 are converted to float32, and rounded at the end, or computed by the host
/// in their own type, and rounded before the activation too.
Status gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cpu

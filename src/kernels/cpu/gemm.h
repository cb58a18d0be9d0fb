// The matrix product on the CPU.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::cpu {

/// Computes the product by the host's GEMM, and what follows it while the rows are in the cache.
/// float16 and bfloat16 are converted to float32, and rounded at the end.
Status gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cpu

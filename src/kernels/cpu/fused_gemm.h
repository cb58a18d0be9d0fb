// The matrix product on the CPU.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::cpu {

/// Computes the product with the host's GEMM, and the epilogue while the rows are in the cache.
/// float16 and bfloat16 are converted to float32 and rounded at the end. Where the host has a
/// product in their own dtype, they are rounded before the epilogue too.
Status fused_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cpu

// The matrix product on CUDA.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::cuda {

/// Puts the product and what follows it on the call's stream, by the engine that is the fastest for
/// its dtype, sizes and alignment.
Status gemm(const Call& call, Gemm gemm);

}  // namespace cudarelu::cuda

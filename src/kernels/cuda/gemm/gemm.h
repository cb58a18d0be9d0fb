// The matrix product on CUDA.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::gpu {

/// Enqueues the product and its epilogue on the call's stream, with the fastest engine for its
/// dtype, sizes and alignment.
Status gemm(const Call& call, Gemm gemm);

}  // namespace cudarelu::gpu

// Products on tensor cores with the instructions of compute capability 8.0 and later.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::gpu {

/// Whether sm80_gemm() can compute the product on the device: float16, bfloat16 or float32 of any
/// alignment, a and b not both transposed, dimensions below 2^31, fewer than 2^31 tiles of 64 by
/// 64, and compute capability 8.0 or later.
bool takes_sm80(const Gemm& gemm, int device);

/// Enqueues a product that takes_sm80() accepts. float32 is multiplied as 3xTF32: each factor is
/// the sum of two TF32, and the three largest of their four products are added in float32. The
/// error is that of float32, except that a factor or result that is infinite, or nearly, may give
/// NaN, and that precision is lost if the smaller TF32 is subnormal.
Status sm80_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::gpu

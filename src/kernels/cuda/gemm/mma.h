// Products on tensor cores by the instructions that compute capability 8.0 and later ones have.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

/// Products of float16, bfloat16 and float32 of any alignment, a and b not both transposed, whose
/// dimensions are below 2^31 and whose 64 by 64 tiles are fewer than that. From compute capability
/// 8.0 on.
bool takes_mma(const Gemm& gemm, int device);

/// Of a product that takes_mma() takes. float32 is multiplied as 3xTF32: each factor is the sum of
/// two TF32, of whose four products the three larger ones count, and sums are rounded as in
/// float32. The error is that of float32, but results may be NaN where a factor or a result is
/// infinite or nearly so, and digits are lost where the smaller TF32 is below the normal numbers.
Status mma_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cuda

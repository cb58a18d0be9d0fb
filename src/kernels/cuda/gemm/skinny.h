// Products of few rows with a weight, [n, k], which is read once: as fast as memory gives it.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

/// Up to 64 rows, one batch, b transposed and a not, float32, float16 or bfloat16; a and b aligned
/// to 16 bytes, and so are their rows; n even, and the results and the bias aligned to two
/// elements. From compute capability 9.0 on, where blocks can have 227 KiB of shared memory.
bool takes_skinny(const Gemm& gemm, int device);

/// Of a product that takes_skinny() takes.
Status skinny_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cuda

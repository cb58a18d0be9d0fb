// Products with a weight [n, k] that are small or have few rows. The weight is read once for each
// tile of up to 64 rows.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::gpu {

/// Whether few_rows_gemm() can compute the product on the device: float16, bfloat16, or float32 of
/// up to 64 rows; one batch, b transposed and a not; a, b and their rows aligned to 16 bytes; n
/// even, the results and the bias aligned to two elements; compute capability 9.0 or later with 227
/// KiB of shared memory for a block.
bool takes_few_rows(const Gemm& gemm, int device);

/// Whether few_rows_gemm() is faster than cuBLASLt, as measured on an H100 and an H200.
bool prefers_few_rows(const Gemm& gemm, int device);

/// Enqueues a product that takes_few_rows() accepts.
Status few_rows_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::gpu

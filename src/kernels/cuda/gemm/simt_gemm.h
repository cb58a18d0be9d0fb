// Products in float32, without tensor cores, which would round the factors.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::gpu {

/// Whether simt_gemm() can compute the product: float32 of any alignment, with dimensions below
/// 2^31, rows in memory shorter than 2^23, and fewer than 2^31 tiles of 64 by 64.
bool takes_simt(const Gemm& gemm, int device);

/// Whether simt_gemm() takes the product and is faster than cuBLASLt, as measured on an H100:
/// products that take about as long as a launch, which it computes in one kernel. Not if TF32 is
/// allowed, which was not measured.
bool prefers_simt(const Gemm& gemm, int device);

/// Enqueues a product that takes_simt() accepts. For few tiles and a long k, parts of k are
/// added up separately, in the blocks of a cluster or in workspace, and then together, always in
/// the same order.
Status simt_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::gpu

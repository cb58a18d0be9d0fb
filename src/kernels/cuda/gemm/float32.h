// Products of float32 matrices in float32: no tensor cores, whose inputs have fewer bits.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

/// Any float32 product, of any alignment, whose dimensions are below 2^31, whose rows in memory are
/// shorter than 2^23, and whose 64 by 64 tiles are fewer than 2^31.
bool takes_float32(const Gemm& gemm, int device);

/// Of a product that takes_float32() takes. Where the product has few tiles and a long k, parts of
/// k are added up apart, in workspace, and then together, always in the same order.
Status float32_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cuda

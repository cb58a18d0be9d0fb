// Products of float32 matrices in float32: no tensor cores, whose inputs have fewer bits.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

/// Any float32 product, of any alignment, with dimensions below 2^31 and rows below 2^23 elements.
bool takes_float32(const Gemm& gemm, int device);

/// Of a product that takes_float32() takes. Where the product has few tiles and a long k, parts of
/// k are added up apart, in workspace, and then together, always in the same order.
Status float32_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cuda

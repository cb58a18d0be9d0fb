// A matrix product for all dtypes, sizes, transpositions and alignments.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::gpu {

Status fallback_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::gpu

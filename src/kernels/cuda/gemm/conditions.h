// What several engines ask of a product, as the conditions of a table.
#pragma once

#include "cudarelu/gemm.h"

namespace cudarelu::gpu {

inline bool has_few_rows(const Gemm& gemm, int /*device*/ = 0) { return gemm.m <= 64; }

inline bool is_half(const Gemm& gemm, int /*device*/ = 0) { return size_of(gemm.dtype) == 2; }

}  // namespace cudarelu::gpu

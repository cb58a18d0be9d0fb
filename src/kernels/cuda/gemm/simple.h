// A matrix product for every dtype, size, transposition and alignment.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::cuda {

Status simple_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cuda

// The matrix product on the CPU for hosts that have none.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::cpu {

/// d = a b + bias in float32 or float64, with the threads and the memory of the host. Ignores the
/// activation, the sum and the other matrix, as Execution::matmul() does.
Status matmul(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cpu

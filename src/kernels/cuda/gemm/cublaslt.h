// cuBLASLt as an engine for Gemm.
#pragma once

#include <string>

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

/// Why cuBLASLt cannot be used, and the mend; empty where it can.
std::string cublaslt_problem();

/// Whether cuBLASLt has the product, on the device, which is current. Asks it once for each shape;
/// from then on this is a look-up.
bool takes_cublaslt(const Gemm& gemm, int device);

/// Puts the product on the call's stream; takes_cublaslt() must have said that it can.
Status cublaslt_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::cuda

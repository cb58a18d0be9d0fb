// cuBLASLt as an engine for Gemm.
#pragma once

#include <string>

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::gpu {

/// Why cuBLASLt cannot be used, and how to fix it; empty if it can.
std::string cublaslt_problem();

/// Whether cuBLASLt can compute the product on the device, which must be current. Asks cuBLASLt
/// once for each shape, and then looks the answer up.
bool takes_cublaslt(const Gemm& gemm, int device);

/// Whether all operands and their rows are aligned to 16 bytes, which cuBLASLt's fast kernels need.
bool suits_cublaslt(const Gemm& gemm);

/// Whether cuBLASLt adds the other matrix itself, which it does before an activation.
inline bool adds_other(const Gemm& gemm) {
  return gemm.other != nullptr && gemm.combine == Combine::add && gemm.sum == nullptr &&
         gemm.activation == Activation::none;
}

/// Whether cuBLASLt has no epilogue for the product, in any alignment.
inline bool lacks_epilogue(const Gemm& gemm) {
  return gemm.activation == Activation::gelu_erf || gemm.activation == Activation::silu ||
         (gemm.other != nullptr && !adds_other(gemm));
}

/// Enqueues a product that takes_cublaslt() accepts on the call's stream.
Status cublaslt_gemm(const Call& call, const Gemm& gemm);

}  // namespace cudarelu::gpu

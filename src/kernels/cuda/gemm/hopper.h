// The matrix product of bfloat16 and float16 for compute capability 9.0.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

#ifdef CUDARELU_WITH_HOPPER

/// Whether hopper_gemm() can compute the product on the device. The copy engine needs pointers and
/// rows aligned to 16 bytes; a and b must not both be transposed; sizes must be positive. Only with
/// b transposed and a not, as in linear layers, there may be an activation or another matrix; and
/// only with GELU and without another matrix, a sum.
bool takes_hopper(const Gemm& gemm, int device);

/// Enqueues a product that takes_hopper() accepts on the call's stream.
Status hopper_gemm(const Call& call, const Gemm& gemm);

#else  // not compiled for compute capability 9.0

inline bool takes_hopper(const Gemm&, int) { return false; }
inline Status hopper_gemm(const Call&, const Gemm&) {
  return {Status::Code::internal, "hopper_gemm is not in this build"};
}

#endif

}  // namespace cudarelu::cuda

// The matrix product of bfloat16 and float16 for compute capability 9.0.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::gpu {

#ifdef CUDARELU_WITH_HOPPER

/// Whether sm90_gemm() can compute the product on the device. The copy engine needs pointers and
/// rows aligned to 16 bytes; a and b must not both be transposed; sizes must be positive. Only with
/// b transposed and a not, as in linear layers, there may be an activation or another matrix; and
/// only with GELU and without another matrix, a sum.
bool takes_sm90(const Gemm& gemm, int device);

/// Whether sm90_gemm() is at least as fast as the first choice of cuBLASLt's heuristics, measured
/// on an H200.
bool prefers_sm90(const Gemm& gemm, int device);

/// Enqueues a product that takes_sm90() accepts on the call's stream.
Status sm90_gemm(const Call& call, const Gemm& gemm);

#else  // not compiled for compute capability 9.0

inline bool takes_sm90(const Gemm&, int) { return false; }
inline bool prefers_sm90(const Gemm&, int) { return false; }
inline Status sm90_gemm(const Call&, const Gemm&) {
  return {Status::Code::internal, "sm90_gemm is not in this build"};
}

#endif

}  // namespace cudarelu::gpu

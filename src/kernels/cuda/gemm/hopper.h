// The matrix product of bfloat16 and float16 for compute capability 9.0.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

#ifdef CUDARELU_WITH_HOPPER

/// Whether hopper_gemm can compute this on the device. The copy engine wants pointers and rows
/// aligned to 16 bytes; a and b are not both transposed; the sizes are positive.
bool takes_hopper(const Gemm& gemm, int device);

/// Puts the product on the call's stream.
Status hopper_gemm(const Call& call, const Gemm& gemm);

#else  // compute capability 9.0 is not among those that are compiled for

inline bool takes_hopper(const Gemm&, int) { return false; }
inline Status hopper_gemm(const Call&, const Gemm&) {
  return {Status::Code::internal, "hopper_gemm is not in this build"};
}

#endif

}  // namespace cudarelu::cuda

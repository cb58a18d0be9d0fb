#include "cuda/gemm/gemm.h"

#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/simple.h"

namespace cudarelu::cuda {

Status gemm(const Call& call, const Gemm& gemm) {
  if (gemm.batch == 0 || gemm.m == 0 || gemm.n == 0) return {};
  const bool allow_tf32 = call.execution.allow_tf32();
  if (takes_cublaslt(gemm, call.execution.device_index, allow_tf32)) {
    return cublaslt_gemm(call, gemm, allow_tf32);
  }
  return simple_gemm(call, gemm);
}

}  // namespace cudarelu::cuda

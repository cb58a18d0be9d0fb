#include "cuda/gemm/gemm.h"

#include "cuda/gemm/simple.h"

namespace cudarelu::cuda {

Status gemm(const Call& call, const Gemm& gemm) {
  if (gemm.batch == 0 || gemm.m == 0 || gemm.n == 0) return {};
  return simple_gemm(call, gemm);
}

}  // namespace cudarelu::cuda

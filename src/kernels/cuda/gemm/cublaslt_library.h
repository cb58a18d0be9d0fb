// NVIDIA's cuBLASLt, opened when it is first asked for: no artifact needs it to be loaded.
#pragma once

#include <cublasLt.h>

#include <span>
#include <string>

namespace cudarelu::cuda {

/// The functions of the library that are called, of the major version that cublasLt.h is of.
struct CublasLt {
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) describe;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmulDescInit_internal) init_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristics;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmul) multiply;

  std::string problem;  // why there is no library, and the mend; else empty
};

/// Opens the first of `names` that is in the process or can be loaded; it is never closed.
CublasLt open_cublaslt(std::span<const std::string> names);

/// The library of this process.
const CublasLt& cublaslt();

}  // namespace cudarelu::cuda

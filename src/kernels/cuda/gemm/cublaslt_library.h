// NVIDIA's cuBLASLt, opened on first use: everything loads without it.
#pragma once

#include <cublasLt.h>

#include <span>
#include <string>

namespace cudarelu::gpu {

/// The functions of the library that are called. Its major version is that of cublasLt.h.
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
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_algorithm;
  decltype(&cublasLtMatmul) multiply;

  std::string problem;  // why there is no library, and how to fix it; else empty
};

/// Opens the first of `names` that the process has loaded, or else can load, and never closes it.
CublasLt open_cublaslt(std::span<const std::string> names);

/// The library of this process.
const CublasLt& cublaslt();

}  // namespace cudarelu::gpu

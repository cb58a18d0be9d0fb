// A library that has cuBLASLt's functions, but of a version that no build is for.
#include <cstddef>

extern "C" {
std::size_t cublasLtGetVersion() { return 110000; }
void cublasLtGetStatusString() {}
void cublasLtCreate() {}
void cublasLtMatmulDescInit_internal() {}
void cublasLtMatmulDescSetAttribute() {}
void cublasLtMatrixLayoutInit_internal() {}
void cublasLtMatrixLayoutSetAttribute() {}
void cublasLtMatmulPreferenceInit_internal() {}
void cublasLtMatmulPreferenceSetAttribute() {}
void cublasLtMatmulAlgoGetHeuristic() {}
void cublasLtMatmulAlgoCheck() {}
void cublasLtMatmul() {}
}

// A library with the functions of cuBLASLt and an unsupported version.
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
void cublasLtMatmulAlgoConfigGetAttribute() {}
void cublasLtMatmul() {}
}

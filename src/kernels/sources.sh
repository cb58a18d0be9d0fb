#!/bin/sh
# Prints the sources of the kernels for all builds (CMakeLists.txt beside this file,
# examples/jit_load.py), as lines "PART FILE", where PART is cpu, cuda or hopper; hopper sources are
# compiled for compute capability 9.0a only. Writes the generated sources into FOLDER.
#
#   usage: sources.sh FOLDER
set -eu
mkdir -p "$1"
generated=$(cd "$1" && pwd)
cd "$(dirname "$0")"

# part NAME FILE...: prints the sources of a part.
part() {
  name=$1
  shift
  for file in "$@"; do echo "$name $PWD/$file"; done
}

part cpu module.cpp cpu/fused_gemm.cpp cpu/matmul.cpp cpu/product_tile.cpp
part hopper cuda/gemm/sm90_gemm.cu ops/attention/sm90_backward.cu ops/attention/sm90_forward.cu
part cuda ops/attention/tiled_backward.cu ops/attention/mma_backward.cu \
  ops/attention/mma_forward.cu ops/attention/mma_packed_forward.cu ops/attention/decode.cu \
  ops/attention/tiled_forward.cu
sh ../module/generate.sh "$generated" cudarelu cudarelu::ops "$PWD"/ops/*.h "$PWD"/ops/*.cpp \
  "$PWD"/ops/*.cu
part cuda cuda/gemm/few_rows_gemm.cu cuda/gemm/simt_gemm.cu cuda/gemm/sm80_gemm.cu \
  cuda/gemm/activate.cu cuda/gemm/fallback_gemm.cu cuda/gemm/cublaslt.cpp \
  cuda/gemm/cublaslt_library.cpp cuda/gemm/cublaslt_plan.cpp cuda/gemm/gemm.cpp cuda/gemm/tuning.cpp

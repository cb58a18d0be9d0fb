#!/bin/sh
# Lists the sources of the kernels for all builds (CMakeLists.txt beside this file,
# examples/jit_load.py), as lines "PART FILE", where PART is cpu, cuda or hopper; hopper sources are
# compiled for compute capability 9.0a only. Writes the generated sources, and all_ops.h, which
# includes every op, into FOLDER.
#
#   usage: sources.sh FOLDER
set -eu
export LC_ALL=C
mkdir -p "$1/pointwise"
generated=$(cd "$1" && pwd)
cd "$(dirname "$0")"
kernels=$(pwd)

# part NAME FILE...: prints the sources of a part.
part() {
  name=$1
  shift
  for file in "$@"; do echo "$name $kernels/$file"; done
}

# update FILE TEXT: writes the file if its text changes; a build compares times.
update() {
  [ "$(cat "$1" 2>/dev/null)" = "$2" ] || printf '%s\n' "$2" >"$1"
}

# instantiate PART ENGINE OP NAME: generates the source of an elementwise op for one engine.
instantiate() {
  functor=$(echo "$3" | awk -F_ '{
    for (i = 1; i <= NF; ++i) printf "%s", toupper(substr($i, 1, 1)) substr($i, 2)
  }')
  update "$generated/pointwise/$4" "$(
    sed "s/@op@/$3/; s/@functor@/$functor/; s/@engine@/$2/; s/@device@/$1/" pointwise/instantiate.in
  )"
  echo "$1 $generated/pointwise/$4"
}

part cpu op_table.cpp gradient.cpp infer.cpp run.cpp cpu/gemm.cpp
part cuda cuda/device.cu cuda/gemm/gemm.cpp cuda/gemm/activate.cu cuda/gemm/cublaslt.cpp \
  cuda/gemm/cublaslt_library.cpp cuda/gemm/cublaslt_plan.cpp cuda/gemm/float32.cu cuda/gemm/mma.cu \
  cuda/gemm/simple.cu cuda/gemm/skinny.cu cuda/gemm/tuning.cpp
part hopper cuda/gemm/hopper.cu

# Each header of ops/ is an op. Its kernels are in files of its own or of another op, or it is a
# matrix product, or an elementwise functor, for which this generates a source for each engine.
headers=
for header in ops/*.h; do
  op=$(basename "$header" .h)
  [ "$op" != list ] || continue
  headers="$headers $header"
  if [ -f "ops/$op.cpp" ]; then
    part cpu "ops/$op.cpp"
    part cuda "ops/$op.cu"
  elif grep -q '^#include "pointwise/op.h"' "$header"; then
    instantiate cpu cpu.h "$op" "$op.cpp"
    instantiate cuda cuda.cuh "$op" "$op.cu"
  fi
done
update "$generated/all_ops.h" "$(printf '#include "%s"\n' $headers)"

#!/usr/bin/env bash
# Installs the other versions of ONNX Runtime, JAX and tvm-ffi with which the tests use one library,
# each into a folder of its own in FOLDER. What is installed is skipped. A version that cannot be
# installed is reported in one line, and its test is skipped.
#
#   usage: old_runtimes.sh PYTHON FOLDER
set -euo pipefail
python=$1 folder=$2

# install NAME REQUIREMENT...
install() {
  local name=$1 output
  shift
  [ ! -d "$folder/$name" ] || return 0
  rm -rf "$folder/$name.part"
  if output=$("$python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 \
    --no-deps --no-compile --only-binary :all: --ignore-requires-python --target "$folder/$name.part" "$@" 2>&1); then
    mv "$folder/$name.part" "$folder/$name"
  else
    echo "The libraries are not tested with $*: ${output##*$'\n'}"
  fi
}

mkdir -p "$folder"
# Versions up to 1.18 were built for NumPy 1.
install 1.15.1 onnxruntime==1.15.1 numpy==1.26.4
install 1.16.3 onnxruntime==1.16.3 numpy==1.26.4
install 1.18.1 onnxruntime==1.18.1 numpy==1.26.4
install 1.20.1 onnxruntime==1.20.1
install 1.23.2 onnxruntime==1.23.2
install python3.12 onnxruntime==1.23.2 numpy --python-version 3.12
install jax-0.5.3 jax==0.5.3 jaxlib==0.5.3
install jax-0.12.0 jax==0.12.0 jaxlib==0.12.0 numpy scipy ml_dtypes opt_einsum --python-version 3.12
install tvm-ffi-0.1.0 apache-tvm-ffi==0.1.0 typing_extensions

#!/usr/bin/env bash
# Installs the other versions of ONNX Runtime, JAX and tvm-ffi with which the tests use one library,
# each into a folder of its own in FOLDER. What is installed is skipped. A version that cannot be
# installed is reported in one line, and its test is skipped.
#
#   usage: old_runtimes.sh PYTHON FOLDER
set -euo pipefail
python=$1 folder=$2

lock=$(dirname "$0")/old_runtimes.lock

# install NAME PACKAGE==VERSION... [--python-version VERSION]
install() {
  local name=$1 options=() packages output
  shift
  [[ $* != *" --"* ]] || options=("${@: -2}")
  [ ! -d "$folder/$name" ] || return 0
  rm -rf "$folder/$name.part"
  packages=$(mktemp)
  awk -v wanted=" ${*//_/-} " '/==/ { keep = index(wanted, " " $1 " ") } keep' "$lock" >"$packages"
  if output=$("$python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 \
    --no-deps --no-compile --only-binary :all: --ignore-requires-python --require-hashes \
    --target "$folder/$name.part" -r "$packages" "${options[@]}" 2>&1); then
    mv "$folder/$name.part" "$folder/$name"
  else
    echo "The libraries are not tested with $*: ${output##*$'\n'}"
  fi
  rm "$packages"
}

mkdir -p "$folder"
# Versions up to 1.18 were built for NumPy 1.
install 1.15.1 onnxruntime==1.15.1 numpy==1.26.4
install 1.16.3 onnxruntime==1.16.3 numpy==1.26.4
install 1.18.1 onnxruntime==1.18.1 numpy==1.26.4
install 1.20.1 onnxruntime==1.20.1
install 1.23.2 onnxruntime==1.23.2
install python3.12 onnxruntime==1.23.2 numpy==2.5.5 --python-version 3.12
install jax-0.5.3 jax==0.5.3 jaxlib==0.5.3
install jax-0.12.0 jax==0.12.0 jaxlib==0.12.0 numpy==2.5.5 scipy==1.18.1 ml_dtypes==0.6.0 opt_einsum==3.4.0 --python-version 3.12
install tvm-ffi-0.1.0 apache-tvm-ffi==0.1.0 typing_extensions==4.16.0

#!/usr/bin/env bash
# Installs the old versions of ONNX Runtime with which tests/ort_plugin/test_ort_versions.py tests the
# plugin, each into FOLDER/VERSION. Versions that are installed are skipped. A version that cannot
# be installed is reported in one line, and its test is skipped.
#
#   usage: old_runtimes.sh PYTHON FOLDER
set -euo pipefail
python=$1 folder=$2

install() {
  local version=$1 output
  shift
  [ ! -d "$folder/$version" ] || return 0
  rm -rf "$folder/$version.part"
  if output=$("$python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 \
    --no-deps --only-binary :all: --target "$folder/$version.part" "onnxruntime==$version" "$@" 2>&1); then
    mv "$folder/$version.part" "$folder/$version"
  else
    echo "The plugin is not tested with ONNX Runtime $version: ${output##*$'\n'}"
  fi
}

mkdir -p "$folder"
# Versions up to 1.18 were built for NumPy 1.
install 1.15.1 numpy==1.26.4
install 1.16.3 numpy==1.26.4
install 1.18.1 numpy==1.26.4
install 1.20.1
install 1.23.2

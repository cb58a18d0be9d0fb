#!/usr/bin/env bash
# Creates the development environment, a virtual environment, in three steps:
#
#   tools      the environment with CMake, ninja and, if no nvcc is installed, CUDA's compiler
#   packages   requirements.lock, and a link to the Python package in the build folder
#   dev        requirements-dev.lock
#
# The lock files have the hashes of what requirements.txt and requirements-dev.txt ask for; lock.sh
# writes them.
#
# If Python lacks venv or its headers, as on Debian, they come from Debian's packages. Nothing
# outside of FOLDER is changed.
#
#   usage: setup.sh STEP PYTHON FOLDER
set -euo pipefail
step=$1 python=$2 venv=$3
root=$(cd "$(dirname "$0")/.." && pwd)

# install LOCK_FILE: runs pip and prints only the downloads. Modules are compiled on first import.
install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile --no-deps \
    --require-hashes -r "$1" |
    sed -un '/^ *Downloading\|^ *Using cached\|^Installing/p'
}

make_tools() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "cudarelu needs Python 3.11 or later; make PYTHON=/path/to/python3" >&2; exit 1; }
  if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
      bash "$root/cmake/debian_package.sh" "$venv/debian-pip" own python3-pip-whl
      "$python" -m venv --without-pip "$venv"
      PYTHONPATH=$(ls "$venv"/debian-pip/usr/share/python-wheels/pip-*.whl) \
        "$venv/bin/python" -m pip install -q pip
    fi
  fi
  install <(awk '/==/ { keep = /^(cmake|ninja)==/ } keep' "$root/requirements.lock")
  nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  if ! "$nvcc" --version 2>/dev/null | grep -qE 'release (1[2-9]|[2-9][0-9])\.'; then
    install "$root/tools/cuda_compiler.lock"
  fi
}

install_packages() {
  install "$root/requirements.lock"

  # Python's headers, if they are missing.
  include=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  if [ ! -f "$include/Python.h" ]; then
    version=$("$venv/bin/python" -c 'import sys; print("python3.%d" % sys.version_info.minor)')
    bash "$root/cmake/debian_package.sh" "$venv/debian-python" own "lib$version-dev"
  fi

  # `import cudarelu` and the commands in this environment are those of the build folder.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$root/build/python" >"$site/cudarelu.pth"
  printf '#!%s\nimport sys\n\nfrom _cudarelu_command import main\n\nsys.exit(main())\n' \
    "$venv/bin/python" >"$venv/bin/cudarelu"
  chmod +x "$venv/bin/cudarelu"
  ln -sfn "$root/build/ort_infer" "$venv/bin/ort_infer"
}

case $step in
  tools) make_tools ;;
  packages) install_packages ;;
  dev) install "$root/requirements-dev.lock" ;;
esac

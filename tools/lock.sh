#!/usr/bin/env bash
# Writes the versions and hashes of all packages that `make` installs, for every platform and every
# Python from 3.11 on, from what requirements*.txt and old_runtimes.sh ask for. Versions that are
# in a lock file stay unless --upgrade is given. Needs uv (pip install uv).
#
#   usage: lock.sh [--upgrade]
set -euo pipefail
cd "$(dirname "$0")/.."
all=$(mktemp) && trap 'rm -f "$all"' EXIT

# compile PYTHON ARGUMENT...: the packages with their hashes, without the address of an index
compile() {
  uv pip compile -q --universal --generate-hashes --no-annotate --no-header \
    --no-emit-index-url --no-emit-find-links --python-version "$@"
}

# requirements-dev.lock has only the packages that are not in requirements.lock.
[ "${1-}" = --upgrade ] || cat requirements.lock requirements-dev.lock >"$all"
compile 3.11 requirements-dev.txt tools/cuda_compiler.txt -o "$all" >/dev/null
compile 3.11 requirements.txt -c "$all" -o requirements.lock >/dev/null
compile 3.11 tools/cuda_compiler.txt -c "$all" -o tools/cuda_compiler.lock >/dev/null
awk 'NR == FNR { if (/==/) known[$1]; next } /==/ { keep = !($1 in known) } keep' \
  <(cat requirements.lock tools/cuda_compiler.lock) "$all" >requirements-dev.lock
compile 3.11 requirements-docs.txt -o requirements-docs.lock "$@" >/dev/null

for package in $(grep '^install ' tools/old_runtimes.sh | grep -oE '[a-z_-]+==[0-9.]+' | sort -u); do
  compile 3.11 --no-deps - <<<"$package" 2>/dev/null || compile 3.12 --no-deps - <<<"$package"
done >tools/old_runtimes.lock

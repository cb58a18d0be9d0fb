#!/usr/bin/env bash
# Runs the fuzzer of BUILD for SECONDS, divided among its targets. What it learns stays in
# BUILD/corpus; an input that fails goes to BUILD/failures. Prints a line for each target, and ends
# with 1 if one has failed.
#
#   usage: fuzz.sh BUILD SECONDS [TARGET...]
set -uo pipefail
build=$1 seconds=$2
shift 2
seeds=$(dirname "$0")/../tests/fuzz/corpus
[ $# -gt 0 ] || set -- $(ls "$seeds")
failed=0
[ ! -d /dev/shm ] || export TMPDIR=/dev/shm  # some targets read files
for target; do
  mkdir -p "$build/corpus/$target" "$build/failures"
  # An input of 4 kB needs neither 256 MB in one piece nor 10 seconds.
  "$build/cudarelu_fuzz" --target="$target" "$build/corpus/$target" "$seeds/$target" \
    -max_total_time=$((seconds / $#)) -max_len=4096 -timeout=10 -malloc_limit_mb=256 \
    -artifact_prefix="$build/failures/$target-" -print_final_stats=1 >"$build/fuzz-$target.log" 2>&1
  result=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz-$target.log")
  coverage=$(grep -o 'cov: [0-9]*' "$build/fuzz-$target.log" | tail -1)
  echo "$target: ${executions:-0} executions, $coverage"
  [ $result -eq 0 ] || { failed=1; grep -m 2 -E 'ERROR|error:|Test unit' "$build/fuzz-$target.log"; }
done
exit $failed

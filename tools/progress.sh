#!/usr/bin/env bash
# Runs a command and prints a message whenever it has been silent for 8 seconds.
#
#   usage: progress.sh COMMAND ARGUMENT...
set -uo pipefail
unset MAKEFLAGS  # ninja cannot use the job server of `make -j`
start=$SECONDS
"$@" 2>&1 | while :; do
  IFS= read -r -t 8 line
  status=$?
  if [ $status -gt 128 ]; then  # no complete line for 8 seconds
    [ -n "$line" ] && printf '%s\n' "$line" || echo "... still running, $((SECONDS - start)) s"
  elif [ $status -eq 0 ] || [ -n "$line" ]; then
    printf '%s\n' "$line"
  fi
  [ $status -eq 0 ] || [ $status -gt 128 ] || break
done

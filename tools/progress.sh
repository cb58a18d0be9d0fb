#!/usr/bin/env bash
# Runs a command, and says so where it is silent for 8 seconds.
#
#   usage: progress.sh COMMAND ARGUMENT...
set -uo pipefail
start=$SECONDS
"$@" 2>&1 | while :; do
  IFS= read -r -t 8 line
  status=$?
  if [ $status -gt 128 ]; then  # nothing for 8 seconds, or no end of a line
    [ -n "$line" ] && printf '%s\n' "$line" || echo "... still running, $((SECONDS - start)) s"
  elif [ $status -eq 0 ] || [ -n "$line" ]; then
    printf '%s\n' "$line"
  fi
  [ $status -eq 0 ] || [ $status -gt 128 ] || break
done

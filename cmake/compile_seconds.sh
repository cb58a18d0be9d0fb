#!/usr/bin/env bash
# Runs a compiler, and appends its output's name and its CPU seconds to a file (tools/budget.py).
#
#   usage: compile_seconds.sh FILE OUTPUT COMMAND ARGUMENT...
file=$1
TIMEFORMAT="$2 %U %S"
shift 2
{ time "$@" 2>&3; } 3>&2 2>>"$file"

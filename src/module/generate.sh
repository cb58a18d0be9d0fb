#!/bin/sh
# Generates the sources of an op module into FOLDER, and prints all sources of the module as lines
# "PART FILE", where PART is cpu or cuda.
#
#   usage: generate.sh FOLDER MODULE NAMESPACE FILE...
#
# FILE is a header, a .cpp or a .cu. An op is a struct of the C++ namespace NAMESPACE whose first
# member is `static constexpr OpSpec spec`. all_ops.h includes the headers and lists the ops. A
# header that includes cudarelu/elementwise.h has functors: for each, a source for each device
# instantiates the engine.
set -eu
export LC_ALL=C
templates=$(cd "$(dirname "$0")" && pwd)
generated=$1 module=$2 namespace=$3
shift 3
mkdir -p "$generated/elementwise"
generated=$(cd "$generated" && pwd)

# update FILE TEXT: writes the file if its text changes; a build compares times.
update() {
  [ "$(cat "$1" 2>/dev/null)" = "$2" ] || printf '%s\n' "$2" >"$1"
}

# ops_of HEADER: prints the ops that a header declares as LINE:NAME.
ops_of() {
  awk '/^ *(struct|class) [A-Za-z0-9_]+/ { name = $2; sub(/[:{].*/, "", name) }
       /static constexpr (cudarelu::)?OpSpec spec/ { print NR ":" name }' "$1"
}

# instantiate PART ENGINE HEADER OP SUFFIX LINE: generates the source of an elementwise op for a
# device.
instantiate() {
  source=$generated/elementwise/$4.$5
  update "$source" "$(sed "s|@header@|$3|; s|@engine@|$2|; s|@part@|$1|; s|@functor@|$namespace::$4|; \
    s|@line@|$6|" "$templates/elementwise.in")"
  echo "$1 $source"
}

includes= ops= checks=
for file in "$@"; do
  case $file in
  *.cpp) echo "cpu $file" ;;
  *.cu) echo "cuda $file" ;;
  *)
    includes="$includes#include \"$file\"
"
    for declared in $(ops_of "$file"); do
      line=${declared%%:*} op=${declared#*:}
      checks="$checks#line $line \"$file\"
static_assert(cudarelu::detail::is_declared<$namespace::$op>);
"
      ops="$ops${ops:+, }$namespace::$op"
      if grep -q '^ *# *include *[<"]cudarelu/elementwise.h[>"]' "$file"; then
        instantiate cpu cpu/elementwise.h "$file" "$op" cpp "$line"
        instantiate cuda cuda/elementwise.cuh "$file" "$op" cu "$line"
      fi
    done
    ;;
  esac
done
[ -n "$ops" ] || {
  echo "no header declares an op: a struct with \`static constexpr OpSpec spec\`" >&2
  exit 1
}
update "$generated/all_ops.h" "// The ops of the module $module.
#include \"cudarelu/define_module.h\"
$includes
// A declaration that does not compile is an error in its line.
$checks
using CudareluOps = cudarelu::detail::List<$ops>;"

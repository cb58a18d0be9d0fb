#!/bin/sh
# Generates the sources of an op module into FOLDER, and prints all sources of the module as lines
# "PART FILE", where PART is cpu or cuda.
#
#   usage: generate.sh FOLDER MODULE NAMESPACE FILE...
#
# FILE is a header, a .cpp or a .cu. An op is a struct of the C++ namespace NAMESPACE whose first
# member is `static constexpr OpSpec spec`, whose signature is a literal. all_ops.h includes the
# headers, lists the ops, and defines the functions that tvm-ffi finds by the names of the ops. A
# header that includes cudarelu/elementwise.h has functors: a source for each device instantiates the
# engine for them.
set -eu
export LC_ALL=C
generated=$1 module=$2 namespace=$3
shift 3
mkdir -p "$generated/elementwise"
generated=$(cd "$generated" && pwd)

# update FILE TEXT: writes the file if its text changes; a build compares times. The text does not
# end with a newline.
update() {
  [ "$(cat "$1" 2>/dev/null)" = "$2" ] || printf '%s\n' "$2" >"$1"
}

# ops_of HEADER: prints the ops that a header declares as LINE:STRUCT:NAME. The name is that in the
# signature, with which the first literal of the spec begins; empty if it is not found.
ops_of() {
  awk '
    function found(name) { print op ":" name; op = "" }
    /^ *(namespace [A-Za-z0-9_]+ *[{] *)?(struct|class) +[A-Za-z0-9_]/ {
      type = $0
      sub(/^ *(namespace [A-Za-z0-9_]+ *[{] *)?(struct|class) +/, "", type)
      sub(/[^A-Za-z0-9_].*/, "", type)
    }
    /static constexpr (cudarelu::)?OpSpec spec/ { if (op) found(""); op = NR ":" type }
    op {
      text = $0
      sub(/\/\/.*/, "", text)
      if (sub(/^[^"]*R"[^(]*[(] */, "", text) || sub(/^[^"]*" */, "", text)) {
        sub(/[^a-z0-9_T].*/, "", text)
        found(text)
      }
    }
    END { if (op) found("") }' "$1"
}

# instantiate PART ENGINE SUFFIX HEADER LINE:STRUCT:NAME...: generates the source of a header's
# elementwise ops for a device. They share one source, since reading the headers takes most of the
# time.
instantiate() {
  part=$1 header=$4 first=${5%:*}
  source=$generated/elementwise/${first#*:}.$3
  text="#include \"$4\"
#include \"cudarelu/$2\"

// Errors name the line of the declaration.
namespace $namespace {}  // so that they say which op is not in the namespace"
  shift 4
  for declared in "$@"; do
    declared=${declared%:*}
    text="$text
#line ${declared%%:*} \"$header\"
template cudarelu::Status cudarelu::elementwise_$part<$namespace::${declared#*:}>(const Call&);"
  done
  update "$source" "$text"
  echo "$part $source"
}

no_kernel="an elementwise op needs #include <cudarelu/elementwise.h> in its header, another op cpu()"
includes= ops= checks= functions=
for file in "$@"; do
  case $file in
  *.cpp) echo "cpu $file" ;;
  *.cu) echo "cuda $file" ;;
  *)
    includes="$includes#include \"$file\"
"
    found=$(ops_of "$file")
    if grep -q '^ *# *include *[<"]cudarelu/elementwise.h[>"]' "$file"; then
      elementwise=true
    else
      elementwise=false
    fi
    for declared in $found; do
      line=${declared%%:*} name=${declared##*:} op=${declared#*:}
      op=${op%:*}
      checks="$checks#line $line \"$file\"
static_assert(cudarelu::detail::is_declared<$namespace::$op>);
#line $line \"$file\"
static_assert($elementwise || !cudarelu::detail::is_functor<$namespace::$op>, \"$no_kernel\");
"
      ops="$ops${ops:+, }$namespace::$op"
      functions="$functions
#line $line \"$file\"
CUDARELU_TVM_FFI($namespace::$op, $name)"
    done
    if [ -n "$found" ] && $elementwise; then
      instantiate cpu cpu/elementwise.h cpp "$file" $found
      instantiate cuda cuda/elementwise.cuh cu "$file" $found
    fi
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
namespace $namespace {}
$checks
using CudareluOps = cudarelu::detail::List<$ops>;
$functions"

#!/bin/sh
# Generates the sources of an op module into FOLDER, and prints all sources of the module as lines
# "PART FILE", where PART is cpu or cuda.
#
#   usage: generate.sh FOLDER MODULE NAMESPACE FILE...
#
# FILE is a header, a .cpp or a .cu. An op is a struct of the C++ namespace NAMESPACE with a
# `static constexpr OpSpec spec`, whose signature is a literal. all_ops.h includes the
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
# signature, with which the first literal of the spec begins; empty if it is not found. Reads tokens,
# since editors leave any space, line ends, comments and braces.
ops_of() {
  awk -v expected="$namespace" -v file="$1" '
    function fail(line, message) {
      if (failed) return
      printf "%s:%d: error: %s\n", file, line, message >"/dev/stderr"
      failed = 1
    }
    function found(name) { print op ":" name; op = "" }
    function literal(text) {
      if (op) {
        sub(/^[ \t\n]+/, "", text)
        sub(/[^a-z0-9_T].*/, "", text)
        found(text)
      }
      head = head "\" "
    }
    # The head of a scope is what precedes its brace, from the end of the last statement on.
    function open_scope(i, scope_name) {
      while (sub(/ template < [^<>]* > /, " ", head)) {}
      if (kind[depth] == "struct" && head !~ / [(] / && head ~ / static / &&
          head ~ / constexpr / && head ~ / OpSpec / && head ~ / spec /) {
        op = spec_line ":" scope[depth]
        op_depth = depth + 1
        for (i = 1; i < depth; i++)
          if (scope[i] != "") scope_name = scope_name (scope_name == "" ? "" : "::") scope[i]
        if (scope_name != expected && !(scope_name == "" && macro) && !misplaced) {
          misplaced = struct_line[depth]
          message = scope[depth] " is in " (scope_name == "" ? "no namespace" : "namespace " scope_name) \
            ", but the ops of this module must be in namespace " expected ", which has its name"
        }
      }
      depth++
      struct_line[depth] = NR
      if (head ~ / namespace /) {
        kind[depth] = "namespace"
        scope[depth] = head
        sub(/.* namespace /, "", scope[depth])
        gsub(/\[ .* \]| inline | /, "", scope[depth])
        if (head ~ / inline namespace /) scope[depth] = ""  # its names are those of the outer one
      } else if (head ~ / (struct|class) / && head !~ / enum /) {
        kind[depth] = "struct"
        scope[depth] = head
        sub(/.* (struct|class) /, " ", scope[depth])
        sub(/ (final |: ).*/, " ", scope[depth])
        sub(/ $/, "", scope[depth])
        sub(/.* /, "", scope[depth])
        if (head_line) struct_line[depth] = head_line
      } else {
        kind[depth] = scope[depth] = ""
      }
    }
    function token(text) {
      if (text ~ /^[{};]$/ && depth == 0 && head ~ /^ [A-Z][A-Z0-9_]+ /) macro = 1  # may open a scope
      if (text == "{") open_scope()
      if (text == "}") {
        if (op && depth == op_depth) found("")
        if (depth > 0) depth--
      }
      if (text ~ /^[{};]$/) { head = " "; head_line = 0; return }
      if (text == "OpSpec") spec_line = NR
      if (text == "struct" || text == "class") head_line = NR
      head = head text " "
    }
    function take(length_) { text = substr(rest, 1, length_); rest = substr(rest, length_ + 1) }
    BEGIN { head = " " }
    NR == 1 && /^(\377\376|\376\377)/ { fail(1, "the file is in UTF-16: save it in UTF-8") }
    NR == 1 { sub(/^\357\273\277/, ""); alone = /\r./ }
    !ends && (directive || /^[ \t]*#/) {
      if (/^[ \t]*#[ \t]*if/) {
        if (skipped || /^[ \t]*#[ \t]*if[ \t]+(0|false)[ \t\r]*($|\/)/) skipped++
        at_if[++ifs] = depth
      } else if (skipped == 1 && /^[ \t]*#[ \t]*el/) {
        skipped = 0
      } else if (skipped && /^[ \t]*#[ \t]*endif/) {
        skipped--
      }
      if (/^[ \t]*#[ \t]*e[ln]/ && depth != at_if[ifs]) unknown = 1  # a scope may be another one
      if (/^[ \t]*#[ \t]*endif/) ifs--
      directive = /\\\r?$/
      next
    }
    skipped { next }
    {
      rest = $0
      while (rest != "") {
        if (ends) {  # of a comment, or of a raw literal
          i = index(rest, ends)
          if (raw) content = content (i ? substr(rest, 1, i - 1) : rest "\n")
          rest = i ? substr(rest, i + length(ends)) : ""
          if (i) {
            ends = ""
            if (raw) { raw = 0; literal(content) }
          }
        } else if (match(rest, /^[ \t\r\f\v]+/)) {
          take(RLENGTH)
        } else if (rest ~ /^\/\//) {
          rest = ""
        } else if (rest ~ /^\/\*/) {
          take(2)
          ends = "*/"
        } else if (match(rest, /^(u8|u|U|L)?R"[^ ()\\]*[(]/)) {
          take(RLENGTH)
          sub(/^[^"]*"/, "", text)
          ends = ")" substr(text, 1, length(text) - 1) "\""
          raw = 1
          content = ""
        } else if (match(rest, /^(u8|u|U|L)?"([^"\\]|\\.)*"/)) {
          take(RLENGTH)
          sub(/^[^"]*"/, "", text)
          literal(text)
        } else if (match(rest, /^(u8|u|U|L)?\047([^\047\\]|\\.)*\047/) || \
                   match(rest, /^[0-9]([0-9A-Za-z_.]|\047[0-9A-Za-z])*/) || \
                   match(rest, /^[A-Za-z_][A-Za-z0-9_]*/) || match(rest, /^::/)) {
          take(RLENGTH)
          token(text)
        } else {
          take(1)
          token(text)
        }
      }
    }
    END {
      if (NR <= 1 && alone) fail(1, "lines end with CR alone: save the file with LF or CR LF")
      if (misplaced && depth == 0 && !unknown) fail(misplaced, message)
      if (failed) exit 1
      if (op) found("")
    }' "$1"
}

# instantiate PART ENGINE SUFFIX HEADER LINE:STRUCT:NAME...: generates the source of a header's
# elementwise ops for a device. They share one source, since reading the headers takes most of the
# time.
instantiate() {
  part=$1 header=$4 first=${5%:*}
  source=$generated/elementwise/${first#*:}.$3
  text="#include \"$4\"
#include \"cudarelu/detail/$2\"

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
engine='^[^[:alnum:]/"*]*#[[:blank:]]*include[[:blank:]]*[<"]cudarelu/elementwise.h[>"]'
includes= ops= checks= functions=
for file in "$@"; do
  case $file in
  *.cpp) echo "cpu $file" ;;
  *.cu) echo "cuda $file" ;;
  *)
    includes="$includes#include \"$file\"
"
    found=$(ops_of "$file")
    if grep -q "$engine" "$file"; then
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
#include \"cudarelu/detail/define_module.h\"
$includes
// A declaration that does not compile is an error in its line.
namespace $namespace {}
$checks
using CudareluOps = cudarelu::detail::List<$ops>;
$functions"

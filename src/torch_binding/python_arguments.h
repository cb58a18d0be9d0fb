// The arguments and results of a Python call of an op.
#pragma once

#include <c10/util/SmallVector.h>
#include <nanobind/nanobind.h>

#include <string_view>

#include "cudarelu/op.h"

namespace cudarelu::binding {

/// The arguments of Python's vectorcall protocol: positional arguments, then named arguments.
struct PythonCall {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* names;  // a tuple of str, or null

  Py_ssize_t named() const { return names == nullptr ? 0 : PyTuple_GET_SIZE(names); }
};

struct Arguments {
  c10::SmallVector<nanobind::handle, 4> inputs;  // null: an absent optional input
  c10::SmallVector<Attribute, 4> attributes;
};

/// Parses the arguments: inputs by position or name, attributes by name. Throws TypeError or, for
/// the value of an attribute, ValueError.
Arguments parse_arguments(const Op& op, const PythonCall& call);

inline nanobind::str to_str(std::string_view text) {
  return nanobind::str(text.data(), text.size());
}

/// Returns the only output, or a tuple of several outputs.
nanobind::object result_of(c10::SmallVector<nanobind::object, 4> outputs);

}  // namespace cudarelu::binding

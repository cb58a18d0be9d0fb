// The arguments of a Python call of an op.
#pragma once

#include <c10/util/SmallVector.h>
#include <nanobind/nanobind.h>

#include "cudarelu/call.h"

namespace cudarelu::binding {

/// The arguments as Python's vectorcall passes them: those by position, then those by name.
struct PythonCall {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* names;  // a tuple of str; null: none

  Py_ssize_t named() const { return names == nullptr ? 0 : PyTuple_GET_SIZE(names); }
};

struct Arguments {
  c10::SmallVector<nanobind::handle, 4> inputs;  // null: an optional input that is absent
  c10::SmallVector<Attribute, 4> attributes;
};

/// Inputs by position or name, attributes by name. Throws TypeError.
Arguments parse_arguments(const Op& op, const PythonCall& call);

/// Whether the object is a numpy.ndarray; a masked array is not, since its mask would be lost.
bool is_array(nanobind::handle object);

/// Calls the op on NumPy arrays; the outputs are new arrays. Throws ValueError and TypeError.
nanobind::object call_on_arrays(const Op& op, const Arguments& arguments);

/// One output, or a tuple of several.
nanobind::object result_of(c10::SmallVector<nanobind::object, 4> outputs);

}  // namespace cudarelu::binding

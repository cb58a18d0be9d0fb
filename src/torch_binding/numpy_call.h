// Calls of an op on NumPy arrays, which run the CPU kernels directly.
#pragma once

#include <nanobind/nanobind.h>

#include "python_arguments.h"

namespace cudarelu::binding {

/// Throws the exception for an error on arrays: ValueError, TypeError, MemoryError or RuntimeError.
void raise_python(const Status& status);

/// Whether the object is a numpy.ndarray. False for a masked array, whose mask would be lost.
bool is_numpy_array(nanobind::handle object);

/// Runs the op on NumPy arrays and returns new arrays. Throws ValueError and TypeError.
nanobind::object call_on_numpy(const Op& op, const Arguments& arguments);

}  // namespace cudarelu::binding

// The declaration of an op for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "cudarelu/op.h"

namespace cudarelu::binding {

/// Returns the declaration as a dictionary with the keys "name", "signature", "inputs", ....
nanobind::dict describe(const Op& op);

}  // namespace cudarelu::binding

// The types of the outputs of a call whose sizes are Python objects: numbers, or symbols of another
// library, such as those of jax.export.
#pragma once

#include <nanobind/nanobind.h>

#include "cudarelu/op.h"

namespace cudarelu::binding {

/// See the function `infer` of the Python module.
nanobind::list infer_types(const Op& op, const nanobind::sequence& inputs,
                           const nanobind::sequence& attributes);

}  // namespace cudarelu::binding

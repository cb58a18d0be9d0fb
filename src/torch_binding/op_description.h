// The declarations of ops and their modules for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "cudarelu/op.h"

namespace cudarelu::binding {

/// Returns the namespace of the op's module.
nanobind::str namespace_of(const Op& op);

/// Returns "namespace::name".
nanobind::str qualified_name(const Op& op);

/// Returns a module as a dictionary with the keys "name", "path", "onnx_domain", ....
[[gnu::cold]] nanobind::dict describe_module(const Module& module);

/// Returns a signature as a dictionary with the keys "name", "inputs", "attributes" and "outputs".
[[gnu::cold]] nanobind::dict describe(const Signature& signature);

/// Returns the declaration as a dictionary with the keys "namespace", "name", "inputs", ....
[[gnu::cold]] nanobind::dict describe(const Op& op);

/// Returns the parsed gradient as a dictionary: "terms", pairs of the position of an input and an
/// expression, and "training_form", the name of the op that has the gradient, or None. An
/// expression is a tuple of the members of cudarelu::Expression.
[[gnu::cold]] nanobind::dict describe_gradient(const Op& op);

}  // namespace cudarelu::binding

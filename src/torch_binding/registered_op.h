// What the binding knows about an op beside its declaration.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>

#include "cudarelu/op.h"

namespace cudarelu::binding {

struct Derivative;  // see autograd.cpp

struct RegisteredOp {
  std::shared_ptr<const Derivative> derivative;
  std::shared_ptr<const c10::OperatorHandle> handle;  // of the functional form
};

/// Of an op of a module that has been registered with PyTorch.
inline const RegisteredOp& registered(const Op& op) {
  return *static_cast<const RegisteredOp*>(op.attachment);
}

}  // namespace cudarelu::binding

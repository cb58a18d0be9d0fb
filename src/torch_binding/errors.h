// Conversion of errors to exceptions of PyTorch.
#pragma once

#include <c10/util/Exception.h>

#include "cudarelu/detail/status.h"

namespace cudarelu::binding {

/// Throws the exception for an error:
///
///     invalid_argument, device_failure, internal   RuntimeError
///     unsupported_dtype, unavailable               NotImplementedError, a RuntimeError
///     out_of_memory                                torch.OutOfMemoryError
[[noreturn]] inline void raise(const Status& status) {
  switch (status.code()) {
    case Status::Code::unsupported_dtype:
    case Status::Code::unavailable:
      C10_THROW_ERROR(NotImplementedError, status.message());
    case Status::Code::out_of_memory:
      C10_THROW_ERROR(OutOfMemoryError, status.message());
    default:
      C10_THROW_ERROR(Error, status.message());
  }
}

}  // namespace cudarelu::binding

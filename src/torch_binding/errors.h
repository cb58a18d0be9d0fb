// The one place that says which exception an error of the core becomes.
#pragma once

#include <c10/util/Exception.h>

#include "cudarelu/status.h"

namespace cudarelu::binding {

/// invalid_argument, device_failure   RuntimeError, as torch has for shapes and for CUDA
/// internal                           RuntimeError
/// unsupported_dtype, unavailable     NotImplementedError, which is a RuntimeError: torch's for
/// what
///                                    has no kernel
/// out_of_memory                      torch.OutOfMemoryError
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

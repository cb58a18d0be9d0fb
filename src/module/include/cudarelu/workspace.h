// Workspace for a call.
#pragma once

#include <string>

#include "cudarelu/call.h"

namespace cudarelu {

/// Sets `workspace` to `count` elements from Execution::allocate(). Returns out_of_memory, with the
/// number of bytes, if there is none.
template <class T>
Status allocate(const Call& call, std::int64_t count, T*& workspace) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  workspace = static_cast<T*>(call.execution.allocate(bytes));
  if (workspace != nullptr || count == 0) return {};
  return {Status::Code::out_of_memory, std::string(call.op) + ": cannot allocate " +
                                           std::to_string(bytes) + " bytes of workspace"};
}

}  // namespace cudarelu

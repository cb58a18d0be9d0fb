// Workspace for a call.
#pragma once

#include <string>

#include "cudarelu/call.h"

namespace cudarelu {

/// The Status of an allocation of `bytes` that failed.
[[gnu::cold, gnu::noinline]] inline Status lacks_workspace(const Call& call, std::size_t bytes) {
  return {Status::Code::out_of_memory, std::string(call.op) + ": cannot allocate " +
                                           std::to_string(bytes) + " bytes of workspace"};
}

/// Sets `workspace` to `count` elements from Execution::allocate(). Returns out_of_memory, with the
/// number of bytes, if there is none.
template <class T>
Status allocate(const Call& call, std::int64_t count, T*& workspace) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  workspace = static_cast<T*>(call.execution.allocate(bytes));
  return workspace != nullptr || count == 0 ? Status() : lacks_workspace(call, bytes);
}

}  // namespace cudarelu

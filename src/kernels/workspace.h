// Workspace for a call.
#pragma once

#include <string>

#include "cudarelu/call.h"

namespace cudarelu {

/// Lets `workspace` point to `count` elements on the call's device, as Execution::allocate() has
/// it; an error names the bytes that are not to be had.
template <class T>
Status allocate(const Call& call, std::int64_t count, T*& workspace) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  workspace = static_cast<T*>(call.execution.allocate(bytes));
  if (workspace != nullptr || count == 0) return {};
  return {Status::Code::out_of_memory,
          std::string(call.op.name) + ": no workspace of " + std::to_string(bytes) + " bytes"};
}

}  // namespace cudarelu

// The range of a call in the time line of Nsight's tools.
#pragma once

#include "cudarelu/op.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

namespace cudarelu {

/// A range with the qualified name of an op, until the end of the scope. Costs nothing in programs
/// that no tool has started: a tool names its library in this variable.
class NvtxRange {
 public:
  explicit NvtxRange(const Op& op) {
    if (is_traced) nvtxRangePushA(op.qualified_name().c_str());
  }
  ~NvtxRange() {
    if (is_traced) nvtxRangePop();
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  inline static const bool is_traced = std::getenv("NVTX_INJECTION64_PATH") != nullptr;
};

}  // namespace cudarelu

#else

namespace cudarelu {

/// Nothing: built without NVTX's headers, which come with CUDA.
class NvtxRange {
 public:
  explicit NvtxRange(const Op& /*op*/) {}
};

}  // namespace cudarelu

#endif

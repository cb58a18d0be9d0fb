// The kernel of one node.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "custom_op.h"
#include "host_gemm.h"

namespace cudarelu::ort {

/// Immutable after construction, since ONNX Runtime calls it from several threads at a time.
class Kernel {
 public:
  /// Throws as compute() does, also if the attributes of the node are invalid.
  Kernel(const CustomOp& custom_op, const OrtApi& api, const OrtKernelInfo& node);

  /// Runs the op. Throws what guarded() converts.
  void compute(OrtKernelContext& context) const;

  const OrtApi& api() const { return api_; }

 private:
  const CustomOp& custom_op_;
  const OrtApi& api_;
  std::vector<Attribute> attributes_;
  std::uint64_t absent_inputs_;
  std::optional<HostGemm> gemm_;  // on the CPU, if the op uses it
};

}  // namespace cudarelu::ort

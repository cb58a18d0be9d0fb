// The kernel of one node: what is known when the session is made, and the call.
#pragma once

#include <onnxruntime_c_api.h>

#include <optional>
#include <vector>

#include "custom_op.h"
#include "host_gemm.h"

namespace cudarelu::ort {

/// ONNX Runtime calls one kernel from several threads at a time: it never changes.
class Kernel {
 public:
  static constexpr std::size_t max_inputs = decltype(Signature::inputs)::capacity();
  static constexpr std::size_t max_outputs = decltype(Signature::outputs)::capacity();

  /// Throws a Failure where the node's attributes are not what the op wants.
  Kernel(const CustomOp& custom_op, const OrtApi& api, const OrtKernelInfo& node);

  /// Throws a Failure, or what the standard library throws.
  void compute(OrtKernelContext& context) const;

  const OrtApi& api() const { return api_; }

 private:
  const CustomOp& custom_op_;
  const OrtApi& api_;
  std::vector<Attribute> attributes_;
  std::optional<HostGemm> gemm_;  // on the CPU, where the op uses it
  bool uniform_;                  // the signature is: inputs of one shape say what the outputs' is
};

}  // namespace cudarelu::ort

// ONNX Runtime's matrix product on the CPU, for cudarelu's kernels.
#pragma once

#include <onnxruntime_c_api.h>

#include <array>
#include <memory>

#include "cudarelu/op.h"
#include "runtime.h"

namespace cudarelu::ort {

/// Releases objects of ONNX Runtime.
struct Release {
  const OrtApi* api = nullptr;
  void operator()(OrtOp* op) const { api->ReleaseOp(op); }
  void operator()(OrtOpAttr* attribute) const { api->ReleaseOpAttr(attribute); }
  void operator()(OrtMemoryInfo* info) const { api->ReleaseMemoryInfo(info); }
  void operator()(OrtValue* value) const { api->ReleaseValue(value); }
};
template <class T>
using Owned = std::unique_ptr<T, Release>;

/// The operators MatMul and Gemm for one element type.
class HostGemm {
 public:
  /// `node` is the node of the kernel; `dtype` is float32 or float64. Throws a RuntimeFailure.
  HostGemm(const OrtApi& api, const OrtKernelInfo& node, DType dtype);

  /// Computes d = a b + bias for each matrix of the batch. Throws a RuntimeFailure.
  void operator()(const OrtKernelContext& context, const Gemm& gemm) const;

 private:
  Owned<OrtValue> tensor(DType dtype, const void* data, std::span<const std::int64_t> shape) const;
  void invoke(const OrtKernelContext& context, const OrtOp& op, const Gemm& gemm,
              std::span<const std::int64_t> batch) const;

  const OrtApi& api_;
  Owned<OrtMemoryInfo> memory_;
  Owned<OrtOp> matmul_;                // for batches without transposed matrices and bias
  std::array<Owned<OrtOp>, 4> gemms_;  // indexed by the transposed factors
};

}  // namespace cudarelu::ort

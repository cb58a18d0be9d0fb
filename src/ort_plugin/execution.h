// The resources of ONNX Runtime for a call: its stream, threads, arena and matrix product.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <vector>

#include "custom_op.h"
#include "host_gemm.h"

namespace cudarelu::ort {

class OrtExecution final : public Execution {
 public:
  /// `located` is any tensor on the call's device. `gemm` is null if the op does not use it.
  OrtExecution(const CustomOp& custom_op, const OrtApi& api, OrtKernelContext& context,
               const OrtValue* located, const HostGemm* gemm)
      : Execution(custom_op.device, on_cpu(custom_op) ? 0 : index_of_device(api, located),
                  on_cpu(custom_op) ? nullptr : stream_of(api, context)),
        runtime_(custom_op.runtime),
        api_(api),
        context_(context),
        located_(located),
        gemm_(gemm) {}
  ~OrtExecution() override {
    if (allocator_ != nullptr) free_workspace();
  }
  OrtExecution(const OrtExecution&) = delete;
  OrtExecution& operator=(const OrtExecution&) = delete;

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override;

  /// The memory returns to the arena at the end of the call, which reuses it in stream order.
  void* allocate(std::size_t bytes) override;

  Status matmul(const Gemm& gemm) override;

  /// The CUDA provider's option use_tf32, which exists since ONNX Runtime 1.18; false before.
  bool allow_tf32() const override;

 private:
  static bool on_cpu(const CustomOp& custom_op) { return custom_op.device == DeviceType::cpu; }
  static int index_of_device(const OrtApi& api, const OrtValue* located);
  static void* stream_of(const OrtApi& api, const OrtKernelContext& context);
  void free_workspace();

  const Runtime& runtime_;
  const OrtApi& api_;
  OrtKernelContext& context_;
  const OrtValue* located_;
  const HostGemm* gemm_;
  OrtAllocator* allocator_ = nullptr;
  std::vector<void*> workspace_;
};

}  // namespace cudarelu::ort

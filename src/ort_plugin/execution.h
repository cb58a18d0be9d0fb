// What ONNX Runtime lends for a call: its stream, its threads and its arena.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <vector>

#include "custom_op.h"

namespace cudarelu::ort {

class OrtExecution final : public Execution {
 public:
  /// `located` is a tensor on the call's device.
  OrtExecution(const CustomOp& custom_op, const OrtApi& api, OrtKernelContext& context,
               const OrtValue* located);
  ~OrtExecution() override;
  OrtExecution(const OrtExecution&) = delete;
  OrtExecution& operator=(const OrtExecution&) = delete;

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override;

  /// The arena takes it back at the end of the call, and reuses it in the order of the stream.
  void* allocate(std::size_t bytes) override;

 private:
  const OrtApi& api_;
  OrtKernelContext& context_;
  const OrtValue* located_;
  const bool has_threads_;
  const bool has_scratch_buffers_;
  OrtAllocator* allocator_ = nullptr;
  std::vector<void*> workspace_;
};

}  // namespace cudarelu::ort

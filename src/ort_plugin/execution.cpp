#include "execution.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

namespace cudarelu::ort {
namespace {

// Constants of ONNX Runtime's cuda_resource.h, which its packages lack.
constexpr int cuda_resource_version = 3;
constexpr int use_tf32 = 10011;

/// The largest number of parts of a parallel_for(): enough to balance the load, with little
/// overhead.
std::int64_t max_parts() {
  static const std::int64_t count =
      4 * std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  return count;
}

}  // namespace

int OrtExecution::index_of_device(const OrtApi& api, const OrtValue* located) {
  const OrtMemoryInfo* info = nullptr;
  int index = 0;
  check(api.GetTensorMemoryInfo(located, &info));
  check(api.MemoryInfoGetId(info, &index));
  return index;
}

void* OrtExecution::stream_of(const OrtApi& api, const OrtKernelContext& context) {
  void* stream = nullptr;
  check(api.KernelContext_GetGPUComputeStream(&context, &stream));
  return stream;
}

void OrtExecution::free_workspace() {
  for (void* memory : workspace_) {
    succeeded(api_, api_.AllocatorFree(allocator_, memory));
  }
  api_.ReleaseAllocator(allocator_);
}

void OrtExecution::parallel_for(std::int64_t n, std::int64_t grain,
                                FunctionRef<void(std::int64_t, std::int64_t)> body) {
  if (n < 2 * grain || runtime_.minor < 17) {
    if (n > 0) body(0, n);
    return;
  }
  const std::int64_t parts = std::min(n / std::max<std::int64_t>(grain, 1), max_parts());
  struct Work {
    FunctionRef<void(std::int64_t, std::int64_t)> body;
    std::int64_t n;
    std::int64_t part;
  };
  Work work{body, n, (n + parts - 1) / parts};
  // ONNX Runtime hangs if a function throws on one of its threads.
  const auto run_part = [](void* data, std::size_t index) noexcept {
    const Work& work = *static_cast<const Work*>(data);
    const std::int64_t begin = static_cast<std::int64_t>(index) * work.part;
    if (begin < work.n) work.body(begin, std::min(begin + work.part, work.n));
  };
  // If it fails, nothing has run. The caller does not expect an exception.
  if (!succeeded(api_, api_.KernelContext_ParallelFor(&context_, run_part,
                                                      static_cast<std::size_t>(parts), 0, &work))) {
    body(0, n);
  }
}

void* OrtExecution::allocate(std::size_t bytes) {
  void* memory = nullptr;
  const auto get = [&] {
    const OrtMemoryInfo* info = nullptr;  // selects the arena of the call's device
    check(api_.GetTensorMemoryInfo(located_, &info));
    if (allocator_ == nullptr) check(api_.KernelContext_GetAllocator(&context_, info, &allocator_));
    workspace_.reserve(workspace_.size() + 1);
    // Without memory, AllocatorAlloc returns a status, but KernelContext_GetScratchBuffer ends the
    // process. On CUDA only the scratch buffer is safe: it belongs to the stream, while another
    // stream may get memory of the allocator before the kernel has finished. So the allocator tests
    // that there is memory, and the scratch buffer is used.
    check(api_.AllocatorAlloc(allocator_, bytes, &memory));
    if (device_type == DeviceType::cuda && runtime_.minor >= 18) {
      check(api_.AllocatorFree(allocator_, std::exchange(memory, nullptr)));
      check(api_.KernelContext_GetScratchBuffer(&context_, info, bytes, &memory));
    }
    workspace_.push_back(memory);
  };
  return succeeded(api_, guarded(api_, get)) ? memory : nullptr;
}

Status OrtExecution::matmul(const Gemm& gemm) {
  OrtStatus* status = guarded(api_, [&] { (*gemm_)(context_, gemm); });
  if (status == nullptr) return {};
  Status result(Status::Code::internal, api_.GetErrorMessage(status));
  api_.ReleaseStatus(status);
  return result;
}

bool OrtExecution::allow_tf32() const {
  if (runtime_.minor < 18) return false;
  void* allowed = nullptr;  // null: TF32 is off, or the provider does not have this option
  succeeded(api_,
            api_.KernelContext_GetResource(&context_, cuda_resource_version, use_tf32, &allowed));
  return allowed != nullptr;
}

}  // namespace cudarelu::ort

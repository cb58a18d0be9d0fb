#include "execution.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

namespace cudarelu::ort {
namespace {

// Of ONNX Runtime's cuda_resource.h, which its packages lack.
constexpr int cuda_resource_version = 3;
constexpr int use_tf32 = 10011;

/// Enough parts to keep every thread busy to the end, few enough to cost nothing.
std::int64_t most_parts() {
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

void OrtExecution::give_back() {
  for (void* memory : workspace_) {
    if (OrtStatus* status = api_.AllocatorFree(allocator_, memory)) api_.ReleaseStatus(status);
  }
  api_.ReleaseAllocator(allocator_);
}

void OrtExecution::parallel_for(std::int64_t n, std::int64_t grain,
                                FunctionRef<void(std::int64_t, std::int64_t)> body) {
  if (n < 2 * grain || runtime_.minor < 17) {
    if (n > 0) body(0, n);
    return;
  }
  const std::int64_t parts = std::min(n / std::max<std::int64_t>(grain, 1), most_parts());
  struct Work {
    FunctionRef<void(std::int64_t, std::int64_t)> body;
    std::int64_t n;
    std::int64_t part;
  };
  Work work{body, n, (n + parts - 1) / parts};
  // ONNX Runtime hangs where a function throws on one of its threads.
  const auto run_part = [](void* data, std::size_t index) noexcept {
    const Work& work = *static_cast<const Work*>(data);
    const std::int64_t begin = static_cast<std::int64_t>(index) * work.part;
    if (begin < work.n) work.body(begin, std::min(begin + work.part, work.n));
  };
  OrtStatus* status = api_.KernelContext_ParallelFor(&context_, run_part,
                                                     static_cast<std::size_t>(parts), 0, &work);
  if (status == nullptr) return;
  api_.ReleaseStatus(status);  // it has not begun: the core, which called, takes no exception
  body(0, n);
}

void* OrtExecution::allocate(std::size_t bytes) {
  void* memory = nullptr;
  const auto get = [&] {
    const OrtMemoryInfo* info = nullptr;  // the tensor's own: the arena of the call's device
    check(api_.GetTensorMemoryInfo(located_, &info));
    if (allocator_ == nullptr) check(api_.KernelContext_GetAllocator(&context_, info, &allocator_));
    workspace_.reserve(workspace_.size() + 1);
    // AllocatorAlloc answers with a status where there is no memory, but another stream may get
    // what it frees while a kernel still works on it. A scratch buffer belongs to the stream, but
    // ends the process where there is no memory: so the one asks first, for the other.
    check(api_.AllocatorAlloc(allocator_, bytes, &memory));
    if (device_type == DeviceType::cuda && runtime_.minor >= 18) {
      check(api_.AllocatorFree(allocator_, std::exchange(memory, nullptr)));
      check(api_.KernelContext_GetScratchBuffer(&context_, info, bytes, &memory));
    }
    workspace_.push_back(memory);
  };
  if (OrtStatus* status = guarded(api_, get)) {
    api_.ReleaseStatus(status);
    return nullptr;
  }
  return memory;
}

Status OrtExecution::gemm(const Gemm& gemm) {
  OrtStatus* status = guarded(api_, [&] { (*gemm_)(context_, gemm); });
  if (status == nullptr) return {};
  Status result(Status::Code::internal, api_.GetErrorMessage(status));
  api_.ReleaseStatus(status);
  return result;
}

bool OrtExecution::allow_tf32() const {
  if (runtime_.minor < 18) return false;
  void* allowed = nullptr;  // null: it is not
  OrtStatus* status =
      api_.KernelContext_GetResource(&context_, cuda_resource_version, use_tf32, &allowed);
  if (status == nullptr) return allowed != nullptr;
  api_.ReleaseStatus(status);  // another provider, which knows of no such option
  return false;
}

}  // namespace cudarelu::ort

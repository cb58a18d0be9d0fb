#include "graph_memory.h"

#include <new>

#include "cudarelu/cuda_driver.h"

namespace cudarelu::xla {
namespace {

constexpr int success = 0;  // of the driver's functions, whose addresses have the size of a pointer

/// Allows this thread, while the object exists, what is no part of a graph while a stream is
/// captured. The driver's form of gpu::RelaxedCapture.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() {
    static auto* const function =
        cuda_driver_function<int(int*)>("cuThreadExchangeStreamCaptureMode");
    if (function != nullptr) function(&mode_);
  }
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

}  // namespace

GraphMemory::~GraphMemory() {
  if (blocks_.empty()) return;
  auto* const push = cuda_driver_function<int(void*)>("cuCtxPushCurrent_v2");
  auto* const pop = cuda_driver_function<int(void**)>("cuCtxPopCurrent_v2");
  auto* const free = cuda_driver_function<int(void*)>("cuMemFree_v2");
  const RelaxedCapture relaxed;  // another stream may be captured
  for (const Block& block : blocks_) {
    if (push(block.context) != success) continue;  // the driver has ended
    free(block.data);
    void* context = nullptr;
    pop(&context);
  }
}

void* GraphMemory::take(int device, int index, std::size_t bytes) noexcept {
  const std::scoped_lock lock(mutex_);
  for (const Block& block : blocks_) {
    if (block.device == device && block.index == index && block.bytes >= bytes) {
      return block.data;
    }
  }
  auto* const allocate = cuda_driver_function<int(void**, std::size_t)>("cuMemAlloc_v2");
  auto* const get_context = cuda_driver_function<int(void**)>("cuCtxGetCurrent");
  if (allocate == nullptr || get_context == nullptr) return nullptr;
  try {
    blocks_.reserve(blocks_.size() + 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  Block block{
      .device = device, .index = index, .bytes = bytes, .data = nullptr, .context = nullptr};
  const RelaxedCapture relaxed;
  if (get_context(&block.context) != success || allocate(&block.data, bytes) != success) {
    return nullptr;
  }
  blocks_.push_back(block);
  return block.data;
}

bool is_captured(void* stream) {
  static auto* const function = cuda_driver_function<int(void*, int*)>("cuStreamIsCapturing");
  int status = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
  return function != nullptr && function(stream, &status) == success && status != 0;
}

}  // namespace cudarelu::xla

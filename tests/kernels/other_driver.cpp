// A library with the functions of NVIDIA's driver that GraphMemory calls, which counts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {
int mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL
int allocations = 0;
int pushed = 0;
char context;
}  // namespace

extern "C" {
int other_driver_allocations() { return allocations; }
/// 0: global, 2: relaxed.
int other_driver_mode() { return mode; }
int cuThreadExchangeStreamCaptureMode(int* other) {
  const int before = mode;
  mode = *other;
  *other = before;
  return 0;
}
int cuStreamIsCapturing(void* stream, int* status) {
  *status = stream != nullptr ? 1 : 0;
  return 0;
}
int cuCtxGetCurrent(void** current) {
  *current = &context;
  return 0;
}
int cuCtxPushCurrent_v2(void* other) { return other == &context ? (++pushed, 0) : 1; }
int cuCtxPopCurrent_v2(void**) { return --pushed; }
/// Fails in a capture, and for more than 1 MB.
int cuMemAlloc_v2(std::uint64_t* data, std::size_t bytes) {
  if (mode != 2 || bytes > 1'000'000) return 2;
  *data = reinterpret_cast<std::uint64_t>(std::malloc(bytes));
  ++allocations;
  return 0;
}
int cuMemFree_v2(std::uint64_t data) {
  if (mode != 2 || pushed != 1) return 1;
  std::free(reinterpret_cast<void*>(data));
  --allocations;
  return 0;
}
}

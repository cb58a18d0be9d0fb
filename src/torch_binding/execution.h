// What PyTorch lends for a call: its current stream, its threads and its caching allocator.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "cudarelu/call.h"
#include "errors.h"

namespace cudarelu::binding {

class TorchExecution final : public Execution {
 public:
  explicit TorchExecution(c10::Device device)
      : Execution(device.is_cuda() ? DeviceType::cuda : DeviceType::cpu,
                  device.is_cuda() ? device.index() : 0, current_stream(device)),
        device_(device) {}

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    if (n <= grain) return body(0, n);
    // In blocks of `grain` items: torch's own grain may be halved.
    at::parallel_for(0, (n + grain - 1) / grain, 1, [&](std::int64_t begin, std::int64_t end) {
      body(begin * grain, std::min(end * grain, n));
    });
  }

  void* allocate(std::size_t bytes) override {
    try {
      const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
      workspace_.push_back(at::empty({static_cast<std::int64_t>(bytes)}, options));
      return workspace_.back().mutable_data_ptr();
    } catch (...) {  // the core does not throw: raise_error() does, when it has returned
      allocation_error_ = std::current_exception();
      return nullptr;
    }
  }

  /// Throws what `status` says; for want of memory, torch's own error, which has the numbers.
  [[noreturn]] void raise_error(const Status& status) const {
    if (allocation_error_ != nullptr) std::rethrow_exception(allocation_error_);
    raise(status);
  }

 private:
  static void* current_stream(c10::Device device) {
    if (!device.is_cuda()) return nullptr;
    // By torch's table of device guards, which needs no library of CUDA to link.
    return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device).native_handle();
  }

  c10::Device device_;
  c10::SmallVector<at::Tensor, 2> workspace_;  // given back, in the order of the stream, at the end
  std::exception_ptr allocation_error_;
};

}  // namespace cudarelu::binding

// What is used of NVIDIA's driver, which is opened where it is: devices, and copies whose time ONNX
// Runtime's C API cannot tell from that of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cudarelu::cli {

/// How many CUDA devices there are; 0 where there is no driver. Makes no context.
int count_cuda_devices();

/// The context of a device that ONNX Runtime uses as well. Its functions throw an Error.
class CudaDevice {
 public:
  explicit CudaDevice(int ordinal);

  /// Makes the device the calling thread's, which the others want.
  void enter() const;
  /// Page-locked memory of the host: copies from and to it are over when the call returns.
  std::shared_ptr<std::byte[]> host_memory(std::size_t bytes) const;
  void to_device(void* to, const std::byte* from, std::size_t bytes) const;
  void to_host(std::byte* to, const void* from, std::size_t bytes) const;

 private:
  void* context_ = nullptr;
};

}  // namespace cudarelu::cli

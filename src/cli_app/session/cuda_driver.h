// The functions of NVIDIA's driver that ort_infer uses: counting devices, and copies, whose time
// ONNX Runtime's C API cannot separate from the time of a run. The driver is loaded at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cudarelu::cli {

/// Returns the number of CUDA devices, 0 without a driver. Creates no context.
int count_cuda_devices();

/// The primary context of a device, which ONNX Runtime uses too. All functions throw an Error.
class CudaDevice {
 public:
  explicit CudaDevice(int ordinal);

  /// Makes the context current on the calling thread. The functions below require it.
  void enter() const;
  /// Allocates page-locked host memory. Copies from and to it have finished when the call returns.
  std::shared_ptr<std::byte[]> host_memory(std::size_t bytes) const;
  void to_device(void* to, const std::byte* from, std::size_t bytes) const;
  void to_host(std::byte* to, const void* from, std::size_t bytes) const;

 private:
  void* context_ = nullptr;
};

}  // namespace cudarelu::cli

// ArithmeticIntensity beside a capture of a stream.
#pragma once

#include <cuda_runtime.h>

namespace cudarelu::gpu {

/// Allows this thread, while the object exists, what is no part of a graph while a stream is
/// captured, such as loading code.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace cudarelu::gpu

// A CUDA stream and device tensors for tests.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "arguments.h"

namespace cudarelu::testing {

inline void check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

/// Runs on a stream that does not synchronize with the default stream, so that work on the wrong
/// stream causes errors.
class CudaExecution : public Execution {
 public:
  CudaExecution() : Execution(DeviceType::cuda, 0, new_stream()) {}
  ~CudaExecution() override {
    for (void* pointer : workspace_) (void)cudaFree(pointer);
    (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
  }
  CudaExecution(const CudaExecution&) = delete;
  CudaExecution& operator=(const CudaExecution&) = delete;
  void parallel_for(std::int64_t, std::int64_t,
                    FunctionRef<void(std::int64_t, std::int64_t)>) override {
    ADD_FAILURE() << "a CUDA kernel must not use the host's threads";
  }
  Status matmul(const Gemm&) override {
    ADD_FAILURE() << "a CUDA kernel must not use the host's matrix product";
    return {};
  }
  void* allocate(std::size_t bytes) override {
    if (refuse) return nullptr;
    void* pointer = nullptr;
    check(cudaMalloc(&pointer, bytes));  // also during capture, which is relaxed in the tests
    workspace_.push_back(pointer);
    return pointer;
  }

  bool refuse = false;

 private:
  static cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  std::vector<void*> workspace_;
};

/// A copy of a guarded tensor and its canaries on the device.
class DeviceTensor {
 public:
  explicit DeviceTensor(GuardedTensor& host) : host_(&host) {
    check(cudaMalloc(&data_, host.whole().size()));
    upload();
  }
  DeviceTensor(DeviceTensor&& other) noexcept : host_(other.host_), data_(other.data_) {
    other.data_ = nullptr;
  }
  ~DeviceTensor() { (void)cudaFree(data_); }

  void upload() {
    const auto bytes = host_->whole();
    check(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());  // cudaMemcpy may return before the copy has finished
  }
  void download() {
    const auto bytes = host_->whole();
    check(cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost));
  }
  TensorView view() {
    TensorView view = host_->view();
    view.data = static_cast<std::uint8_t*>(data_) + host_->begin();
    return view;
  }

 private:
  GuardedTensor* host_;
  void* data_ = nullptr;
};

inline bool has_cuda_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

}  // namespace cudarelu::testing

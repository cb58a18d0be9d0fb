// The CUDA device of a call, and what is known of each device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "cudarelu/detail/cuda/check.h"

namespace cudarelu::gpu {

/// Runs `kernel` with the call's device current, then makes the previous device current again.
template <class F>
Status run_on_device(const Call& call, const F& kernel) {
  int previous = -1;
  if (Status status = check(call, cudaGetDevice(&previous)); !status.ok()) return status;
  const int device = call.execution.device_index;
  if (device == previous) return kernel(call);
  if (Status status = check(call, cudaSetDevice(device)); !status.ok()) return status;
  Status status;
  try {
    status = kernel(call);
  } catch (...) {
    (void)cudaSetDevice(previous);
    throw;
  }
  Status restored = check(call, cudaSetDevice(previous));
  if (!status.ok()) return status;
  return restored;
}

/// The number of devices for which PerDevice keeps values.
inline constexpr int max_devices = 64;

/// The cache of what the driver and the libraries answer about devices: `count` values for each
/// device, each found once. Objects are static; access is thread-safe, and has no lock for values
/// that are known.
template <class T, int count = 1>
class PerDevice {
 public:
  /// Sets `value` to the value at `index`, the first time by find(value). Returns the error of
  /// find(), which is then called again the next time.
  template <class Find>
  auto get(int device, int index, T& value, const Find& find) {
    using Error = decltype(find(value));
    if (device >= max_devices) return find(value);
    const std::size_t i =
        static_cast<std::size_t>(device) * count + static_cast<std::size_t>(index);
    if (!known_[i].load(std::memory_order_acquire)) {
      if (const Error error = find_once(i, find); error != Error{}) return error;
    }
    value = values_[i];
    return Error{};
  }

 private:
  template <class Find>
  [[gnu::cold, gnu::noinline]] auto find_once(std::size_t i, const Find& find) {
    using Error = decltype(find(values_[i]));
    const std::scoped_lock lock(mutex_);
    if (!known_[i].load(std::memory_order_relaxed)) {
      if (const Error error = find(values_[i]); error != Error{}) return error;
      known_[i].store(true, std::memory_order_release);
    }
    return Error{};
  }

  static constexpr std::size_t size = static_cast<std::size_t>(max_devices) * count;
  std::array<std::atomic<bool>, size> known_{};
  std::array<T, size> values_{};
  std::mutex mutex_;
};

/// An attribute of the device, or -1 where CUDA reports an error.
template <cudaDeviceAttr attribute>
int number_of(int device) {
  static PerDevice<int> known;
  int value = 0;
  const cudaError_t error = known.get(device, 0, value, [&](int& number) {
    return cudaDeviceGetAttribute(&number, attribute, device);
  });
  if (error == cudaSuccess) return value;
  (void)cudaGetLastError();
  return -1;
}

}  // namespace cudarelu::gpu

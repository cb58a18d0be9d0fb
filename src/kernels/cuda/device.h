// The CUDA device of a call, and what is known of each device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "cudarelu/call.h"

namespace cudarelu::cuda {

/// Runs `kernel` with the call's device current, and makes the device before it current again.
Status run_on_device(const Call& call, Kernel kernel);

/// The number of devices for which PerDevice keeps values.
inline constexpr int most_devices = 64;

/// `count` values for each device, each of which is found once: the one store of what the driver
/// and the libraries answer. For static storage; thread-safe; a known value is read without a lock.
template <class T, int count = 1>
class PerDevice {
 public:
  /// Sets `value` to the value at `index`, which find(value) finds the first time. Returns an error
  /// of find(), which is called again the next time.
  template <class Find>
  auto get(int device, int index, T& value, const Find& find) {
    using Error = decltype(find(value));
    if (device >= most_devices) return find(value);
    const auto i = static_cast<std::size_t>(device * count + index);
    if (!known_[i].load(std::memory_order_acquire)) {
      const std::scoped_lock lock(mutex_);
      if (!known_[i].load(std::memory_order_relaxed)) {
        if (const Error error = find(values_[i]); error != Error{}) return error;
        known_[i].store(true, std::memory_order_release);
      }
    }
    value = values_[i];
    return Error{};
  }

 private:
  static constexpr std::size_t size = static_cast<std::size_t>(most_devices) * count;
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

/// Whether the kernels, as compiled for the device, which is current, are for `architecture` (90
/// for compute capability 9.0) or a later one. Code for an older one may run on a newer device.
bool is_compiled_for(int architecture, int device);

/// Whether the kernels wait for the kernel before them by themselves, and have clusters.
inline bool has_programmatic_launch(int device) { return is_compiled_for(90, device); }

}  // namespace cudarelu::cuda

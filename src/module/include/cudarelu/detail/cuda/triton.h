// Kernels that Triton has compiled ahead, for the sources that cudarelu.triton_op generates.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>

#include "cudarelu/call.h"
#include "cudarelu/detail/cuda/capture.h"
#include "cudarelu/detail/cuda/device.h"
#include "cudarelu/detail/workspace.h"

#if CUDART_VERSION < 12080
#error "kernels in Triton need CUDA 12.8 or later"
#endif

namespace cudarelu::gpu::triton {

/// The machine code of a kernel for one architecture, and what a launch must know of it.
struct Image {
  int architecture;  // 90 for compute capability 9.0
  const char* name;  // of the kernel
  unsigned threads;
  int shared_bytes;           // dynamic
  std::size_t scratch_bytes;  // of global memory, for each block
  std::size_t scratch_align;  // a power of two
  const std::uint64_t* code;  // a cubin
};

/// Whether a device of a compute capability runs the code. From 9.0 on, Triton uses instructions
/// that no other architecture has.
constexpr bool runs_on(const Image& image, int architecture) {
  if (image.architecture >= 90) return image.architecture == architecture;
  return image.architecture / 10 == architecture / 10 && image.architecture <= architecture;
}

/// The blocks of a launch.
struct Grid {
  std::int64_t x = 1;
  std::int64_t y = 1;
  std::int64_t z = 1;
};

/// A kernel for several architectures. Loads its code when it first runs on a device. Static.
class Kernel {
 public:
  explicit constexpr Kernel(std::span<const Image> images) : images_(images) {}

  /// Launches the kernel on the call's stream. The arguments have the types of its parameters.
  template <class... Arguments>
  Status launch(const Call& call, const Grid& grid, Arguments... arguments) {
    // Triton's own parameters follow: workspace of the kernel, and of its profiler.
    void* scratch = nullptr;
    void* profile = nullptr;
    std::array<void*, sizeof...(Arguments) + 2> addresses{&arguments..., &scratch, &profile};
    return launch(call, grid, addresses.data(), scratch);
  }

 private:
  struct Loaded {
    const Image* image = nullptr;
    cudaKernel_t kernel = nullptr;
  };

  Status launch(const Call& call, const Grid& grid, void** arguments, void*& scratch) {
    if (grid.x > std::numeric_limits<std::int32_t>::max() || grid.y > 65535 || grid.z > 65535) {
      return {Status::Code::invalid_argument,
              std::string(call.op) + ": the grid has too many blocks"};
    }
    if (grid.x < 0 || grid.y < 0 || grid.z < 0) {
      return {Status::Code::invalid_argument,
              std::string(call.op) + ": the grid has a negative size"};
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
    const int device = call.execution.device_index;
    Loaded loaded;
    const cudaError_t error =
        loaded_.get(device, 0, loaded, [&](Loaded& found) { return load(device, found); });
    if (error == cudaErrorNoKernelImageForDevice) {
      return {Status::Code::unavailable,
              std::string(call.op) +
                  ": the module has no code of the kernel for compute capability " +
                  std::to_string(architecture_of(device) / 10) + "." +
                  std::to_string(architecture_of(device) % 10)};
    }
    if (error != cudaSuccess) return check(call, error);
    const Image& image = *loaded.image;
    if (image.scratch_bytes > 0) {
      std::byte* workspace = nullptr;
      const std::int64_t blocks = grid.x * grid.y * grid.z;
      const auto bytes = static_cast<std::int64_t>(image.scratch_bytes) * blocks;
      const auto more = static_cast<std::int64_t>(image.scratch_align);
      if (Status status = allocate(call, bytes + more, workspace); !status.ok()) return status;
      const auto address = reinterpret_cast<std::uintptr_t>(workspace);
      scratch = workspace + (-address & (image.scratch_align - 1));
    }
    const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                      static_cast<unsigned>(grid.z));
    return check(
        call, cudaLaunchKernel(reinterpret_cast<const void*>(loaded.kernel), blocks, image.threads,
                               arguments, static_cast<std::size_t>(image.shared_bytes),
                               static_cast<cudaStream_t>(call.execution.stream)));
  }

  static int architecture_of(int device) {
    return 10 * number_of<cudaDevAttrComputeCapabilityMajor>(device) +
           number_of<cudaDevAttrComputeCapabilityMinor>(device);
  }

  cudaError_t load(int device, Loaded& found) const {
    for (const Image& image : images_) {
      if (!runs_on(image, architecture_of(device))) continue;
      if (found.image == nullptr || image.architecture > found.image->architecture) {
        found.image = &image;
      }
    }
    if (found.image == nullptr) return cudaErrorNoKernelImageForDevice;
    const RelaxedCapture relaxed;
    cudaLibrary_t library = nullptr;  // stays loaded, as the module does
    cudaError_t error =
        cudaLibraryLoadData(&library, found.image->code, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (error == cudaSuccess) {
      error = cudaLibraryGetKernel(&found.kernel, library, found.image->name);
    }
    if (error == cudaSuccess && found.image->shared_bytes > 0) {
      error =
          cudaKernelSetAttributeForDevice(found.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          found.image->shared_bytes, device);
    }
    return error;
  }

  std::span<const Image> images_;
  PerDevice<Loaded> loaded_;
};

/// Whether all addresses are multiples of `alignment`.
template <class... Pointers>
bool are_aligned(std::size_t alignment, const Pointers*... pointers) {
  return (... && (reinterpret_cast<std::uintptr_t>(pointers) % alignment == 0));
}

/// The value as an argument of 32 bits. Throws std::invalid_argument if it needs more.
inline std::int32_t to_int32(const Call& call, const char* name, std::int64_t value) {
  if (value == static_cast<std::int32_t>(value)) return static_cast<std::int32_t>(value);
  throw std::invalid_argument(
      std::string(call.op) + ": " + name + " is " + std::to_string(value) +
      ", but the kernel takes 32 bits: annotate its parameter with tl.int64");
}

/// a / b, rounded down as Python's // does. Throws std::invalid_argument for b = 0.
inline std::int64_t floor_div(const Call& call, std::int64_t a, std::int64_t b) {
  if (b == 0) throw std::invalid_argument(std::string(call.op) + ": division by zero");
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

/// a - b * floor_div(a, b)
inline std::int64_t floor_mod(const Call& call, std::int64_t a, std::int64_t b) {
  return a - b * floor_div(call, a, b);
}

}  // namespace cudarelu::gpu::triton

// Tensor maps for the copy engine of compute capability 9.0 and later.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <string>

#include "cudarelu/call.h"
#include "cudarelu/cuda/check.h"

namespace cudarelu::cuda {

/// Encodes the map of a dense tensor [batch, rows, columns] of float16, bfloat16 or float32, whose
/// rows are aligned to 16 bytes. A box is `box` rows of 128 bytes, swizzled in shared memory.
inline Status describe(const Call& call, CUtensorMap& map, DType dtype, const void* data,
                       std::int64_t batch, std::int64_t rows, std::int64_t columns, int box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  const std::array sizes{size(columns), size(rows), size(batch)};
  const std::array strides{size(columns * bytes), size(rows * columns * bytes)};
  const std::array<cuuint32_t, 3> boxes{static_cast<cuuint32_t>(128 / bytes),
                                        static_cast<cuuint32_t>(box), 1};
  const std::array<cuuint32_t, 3> steps{1, 1, 1};
  const CUtensorMapDataType type = dtype == DType::float32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : dtype == DType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result =
      encode == nullptr
          ? CUDA_ERROR_NOT_FOUND
          : encode(&map, type, 3, const_cast<void*>(data), sizes.data(), strides.data(),
                   boxes.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {Status::Code::device_failure,
          std::string(call.op) + ": CUDA: cuTensorMapEncodeTiled: error " + std::to_string(result)};
}

}  // namespace cudarelu::cuda

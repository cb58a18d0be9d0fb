// Tensor maps for the copy engine of compute capability 9.0 and later.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <string>

#include "cudarelu/call.h"
#include "cudarelu/detail/cuda/check.h"

namespace cudarelu::gpu {

/// Encodes the map of a tensor of float16, bfloat16 or float32. Its sizes are given from the last
/// dimension, of neighbouring elements, to the first one; then the strides of the others, in
/// elements, which are multiples of 16 bytes less than 2^40. The tensor is aligned to 16 bytes. A
/// box is `box` rows of 128 bytes, swizzled in shared memory.
template <std::size_t rank>
Status describe(const Call& call, CUtensorMap& map, DType dtype, const void* data,
                const std::array<std::int64_t, rank>& shape,
                const std::array<std::int64_t, rank - 1>& strides, int box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  std::array<cuuint64_t, rank> sizes;
  std::array<cuuint64_t, rank - 1> byte_strides;
  std::array<cuuint32_t, rank> boxes;
  std::array<cuuint32_t, rank> steps;
  boxes.fill(1);
  steps.fill(1);
  boxes[0] = static_cast<cuuint32_t>(128 / bytes);
  boxes[1] = static_cast<cuuint32_t>(box);
  for (std::size_t i = 0; i < rank; ++i) sizes[i] = static_cast<cuuint64_t>(shape[i]);
  for (std::size_t i = 0; i + 1 < rank; ++i) {
    byte_strides[i] = static_cast<cuuint64_t>(strides[i] * bytes);
  }
  const CUtensorMapDataType type = dtype == DType::float32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : dtype == DType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result =
      encode == nullptr
          ? CUDA_ERROR_NOT_FOUND
          : encode(&map, type, rank, const_cast<void*>(data), sizes.data(), byte_strides.data(),
                   boxes.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {Status::Code::device_failure,
          std::string(call.op) + ": CUDA: cuTensorMapEncodeTiled: error " + std::to_string(result)};
}

/// Of a dense tensor [batch, rows, columns].
inline Status describe(const Call& call, CUtensorMap& map, DType dtype, const void* data,
                       std::int64_t batch, std::int64_t rows, std::int64_t columns, int box) {
  return describe<3>(call, map, dtype, data, {columns, rows, batch}, {columns, rows * columns},
                     box);
}

}  // namespace cudarelu::gpu

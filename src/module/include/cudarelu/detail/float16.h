// float16 and bfloat16 as storage types: arithmetic is in float32, results are rounded once.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define CUDARELU_FN __host__ __device__ __forceinline__
#else
#define CUDARELU_FN inline
#endif

namespace cudarelu {

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

CUDARELU_FN float to_float(BFloat16 x) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
#else
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
#endif
}

CUDARELU_FN float to_float(Half x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x.bits));
#else
  // The exponent of a normal number grows by 112. A subnormal is converted from an integer, since
  // the host may flush subnormal floats. Infinity and NaN, then 2^16 or more, get the largest one.
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  const float value = magnitude < 0x400u ? static_cast<float>(magnitude) * 0x1p-24f
                                         : std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  bits |= value >= 0x1p16f ? 0x7f800000u : 0u;
  return std::bit_cast<float>(bits | sign);
#endif
}

CUDARELU_FN void from_float(float x, BFloat16& result) {
#ifdef __CUDA_ARCH__
  result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  result.bits = static_cast<std::uint16_t>(x != x ? 0x7fffu : rounded);  // the NaN of CUDA
#endif
}

CUDARELU_FN void from_float(float x, Half& result) {
#ifdef __CUDA_ARCH__
  result.bits = __half_as_ushort(__float2half_rn(x));
#else
  // Adding a number whose last bit has the weight of the half's last bit rounds to nearest even.
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t exponent = magnitude < 0x38800000u ? 0x38800000u : magnitude & 0x7f800000u;
  const std::uint32_t anchor_bits = exponent + (13u << 23);  // 2^13 times the exponent's power
  const float anchor = std::bit_cast<float>(anchor_bits);
  const std::uint32_t sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + anchor);
  const std::uint32_t rounded = (sum - anchor_bits) + ((exponent - 0x38800000u) >> 13);
  const std::uint32_t special = magnitude > 0x7f800000u ? 0x7fffu : 0x7c00u;
  // 65520 and above round to infinity.
  result.bits = static_cast<std::uint16_t>(sign | (magnitude >= 0x477ff000u ? special : rounded));
#endif
}

}  // namespace cudarelu

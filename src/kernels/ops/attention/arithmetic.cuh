// Arithmetic that the kernels of attention share: weights are powers of 2 in float32.
#pragma once

#include <cstdint>
#include <limits>

namespace cudarelu::ops::attention {

inline constexpr float log2_e = 1.44269504f;
inline constexpr float ln_2 = 0.693147181f;

/// 2^x; 0 where that is subnormal.
__device__ __forceinline__ float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

/// x log2(e), so that exp(x) is 2^exponent_of(x). For finite x it is at least -2^127: the lowest
/// numbers of a mask in bfloat16 would become -infinity, which hides keys. A mask's number and an
/// lse made of it have the same exponent.
__device__ __forceinline__ float exponent_of(float x) {
  const float exponent = x * log2_e;
  const bool is_lowest = exponent < -0x1.fffp126f && x > -std::numeric_limits<float>::infinity();
  return is_lowest ? -0x1p127f : exponent;
}

/// A number from 1 to 2^31 by which numbers below 2^31 are divided with few instructions (Granlund
/// and Montgomery, 1994).
struct Divisor {
  int number = 1;
  unsigned factor = 1u << 31;  // 2^shift / number, rounded up
  int shift = 31;

  Divisor() = default;
  explicit Divisor(int n) : number(n) {
    while (std::int64_t{1} << (shift - 31) < n) ++shift;
    factor = static_cast<unsigned>(((std::uint64_t{1} << shift) + n - 1) / n);
  }
  __device__ __forceinline__ unsigned quotient(unsigned n) const {
    return static_cast<unsigned>(std::uint64_t{n} * factor >> shift);
  }
};

}  // namespace cudarelu::ops::attention

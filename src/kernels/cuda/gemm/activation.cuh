// The activations that end a matrix product, in float32. NaN stays NaN.
#pragma once

#include <array>
#include <type_traits>

#include "cudarelu/float16.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

__device__ __forceinline__ float exp2_approximately(float x) {  // within 2 ulp; 0 where subnormal
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float relu(float x) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(x));
  return result;
#else
  return x < 0 ? 0.0f : x;
#endif
}

/// x Phi(x) = max(x, 0) - |x| Phi(-|x|), where Phi is the normal distribution: no digits cancel for
/// negative x. log2 Phi(-a) is nearly a parabola: `factors` are those of a polynomial.
template <std::size_t count>
__device__ __forceinline__ float gelu_erf(float x, const std::array<float, count>& factors) {
  const float a = fminf(fabsf(x), 14.0f);
  float power = factors.back();
#pragma unroll
  for (int i = static_cast<int>(count) - 2; i >= 0; --i) power = fmaf(power, a, factors[i]);
  return fmaf(fminf(x, -a), exp2_approximately(power), relu(x));  // -infinity gives NaN
}

/// For a result of type T. The polynomials are fitted on [0, 6] and go on until the power rounds to
/// 0: float's within 1 % of it, with an error of at most 1.5e-7, and 5e-5 of the result for x > -6;
/// bfloat16's error is 4e-4 of the result there, a tenth of what the rounding may add.
template <class T = float>
__device__ __forceinline__ float gelu_erf(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    constexpr std::array factors{-0x1.0022dap+0f, -0x1.24f76p+0f, -0x1.e421eep-2f,
                                 -0x1.5ee2cp-5f,  0x1.24c9fep-8f, -0x1.a6f668p-13f};
    return gelu_erf(x, factors);
  } else {
    constexpr std::array factors{-0x1.fffe2p-1f,  -0x1.26ba7ep+0f, -0x1.d57e1p-2f,
                                 -0x1.b916e6p-5f, 0x1.1388e8p-7f,  -0x1.d57eecp-11f,
                                 0x1.d66b8ep-15f, -0x1.9675cp-20f};
    return gelu_erf(x, factors);
  }
}

/// x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u)), where u = sqrt(2 / pi) (x + 0.044715 x^3): no digits
/// cancel for negative x.
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float scale = -2.0f * 0.7978845608f * 1.4426950409f;  // of u, for powers of 2
  const float power = x * fmaf(x * x, scale * 0.044715f, scale);
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + exp2_approximately(power)));
  return x * inverse;
}

/// For a result of type T.
template <Activation activation, class T>
__device__ __forceinline__ float activate(float x) {
  if constexpr (activation == Activation::relu) return relu(x);
  if constexpr (activation == Activation::gelu_erf) return gelu_erf<T>(x);
  if constexpr (activation == Activation::gelu_tanh) return gelu_tanh(x);
  return x;
}

/// Of several elements at a time: each is a chain of operations that wait for each other.
template <int count>
__device__ __forceinline__ void activate(float (&x)[count], Activation activation) {
  const auto each = [&](const auto& function) {
#pragma unroll
    for (float& value : x) value = function(value);
  };
  switch (activation) {
    case Activation::none:
      break;
    case Activation::relu:
      each([](float value) { return relu(value); });
      break;
    case Activation::gelu_erf:
      each([](float value) { return gelu_erf(value); });
      break;
    case Activation::gelu_tanh:
      each([](float value) { return gelu_tanh(value); });
      break;
  }
}

}  // namespace cudarelu::cuda

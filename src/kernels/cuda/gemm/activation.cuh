// The activations that end a matrix product, in float32. NaN stays NaN.
#pragma once

#include <array>

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
/// negative x. log2 Phi(-a) is nearly a parabola: a polynomial fitted on [0, 6], which goes on
/// within 1 % of it until the power rounds to 0. The error is at most 1.5e-7, and 5e-5 of the
/// result for x > -6. Several at a time: each is a chain of operations that wait for each other.
template <int count>
__device__ __forceinline__ void gelu_erf(float (&x)[count]) {
  constexpr std::array factors{-0x1.fffe2p-1f, -0x1.26ba7ep+0f,  -0x1.d57e1p-2f,  -0x1.b916e6p-5f,
                               0x1.1388e8p-7f, -0x1.d57eecp-11f, 0x1.d66b8ep-15f, -0x1.9675cp-20f};
  float a[count];
  float power[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    a[i] = fminf(fabsf(x[i]), 14.0f);
    power[i] = factors.back();
  }
#pragma unroll
  for (int term = static_cast<int>(factors.size()) - 2; term >= 0; --term) {
#pragma unroll
    for (int i = 0; i < count; ++i) power[i] = fmaf(power[i], a[i], factors[term]);
  }
#pragma unroll
  for (int i = 0; i < count; ++i) power[i] = exp2_approximately(power[i]);
#pragma unroll
  for (int i = 0; i < count; ++i) x[i] = fmaf(-a[i], power[i], relu(x[i]));
}

/// x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u)), where u = sqrt(2 / pi) (x + 0.044715 x^3): no digits
/// cancel for negative x.
template <int count>
__device__ __forceinline__ void gelu_tanh(float (&x)[count]) {
  constexpr float scale = -2.0f * 0.7978845608f * 1.4426950409f;  // of u, for powers of 2
  float y[count];
#pragma unroll
  for (int i = 0; i < count; ++i) y[i] = x[i] * fmaf(x[i] * x[i], scale * 0.044715f, scale);
#pragma unroll
  for (int i = 0; i < count; ++i) y[i] = 1.0f + exp2_approximately(y[i]);
#pragma unroll
  for (int i = 0; i < count; ++i) asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(y[i]));
#pragma unroll
  for (int i = 0; i < count; ++i) x[i] *= y[i];
}

template <int count>
__device__ __forceinline__ void activate(float (&x)[count], Activation activation) {
  constexpr int together = count < 8 ? count : 8;
  static_assert(count % together == 0);
  const auto each = [&](const auto& function) {
#pragma unroll
    for (int i = 0; i < count; i += together) {
      function(reinterpret_cast<float (&)[together]>(x[i]));
    }
  };
  switch (activation) {
    case Activation::none:
      break;
    case Activation::relu:
#pragma unroll
      for (float& value : x) value = relu(value);
      break;
    case Activation::gelu_erf:
      each([](float (&some)[together]) { gelu_erf(some); });
      break;
    case Activation::gelu_tanh:
      each([](float (&some)[together]) { gelu_tanh(some); });
      break;
  }
}

}  // namespace cudarelu::cuda

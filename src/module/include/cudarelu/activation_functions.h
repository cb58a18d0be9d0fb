// ReLU; SiLU, x logistic(x); GELU and its first two derivatives, in both of PyTorch's forms: x
// cdf(x) of the normal distribution, which has erf in it, and x logistic(v), where
// v = 2 sqrt(2/pi) (x + 0.044715 x^3), which is (1 + tanh(v/2)) / 2. For the ops, and for the
// epilogues of matrix products.
//
// They follow the formulas: +inf stays, -inf and NaN give NaN; the derivatives of infinities are
// NaN. Where powers of x overflow, the result is the limit.
#pragma once

#include <array>

#include "cudarelu/transcendental.h"

namespace cudarelu {

/// max(x, 0); NaN stays NaN.
template <class T>
CUDARELU_FN T relu(T x) {
  return x < T(0) ? T(0) : x;
}

/// x / (1 + exp(-x)); -0 where the divisor overflows, in float32 below -88.7. The error on the CPU
/// is at most 2.5 units in the last place.
template <class T>
CUDARELU_FN T silu(T x) {
  return x / (1 + math::exp_of_any(-x));
}

}  // namespace cudarelu

namespace cudarelu::gelu {
namespace detail {

/// x, limited to where its powers do not overflow; beyond, the functions are at their limits.
template <class T>
CUDARELU_FN T bounded(T x) {
  const T large = 64;
  return x > large ? large : x < -large ? -large : x;
}

/// v and its derivatives.
template <class T>
struct Argument {
  static constexpr T linear = T(1.5957691216057308);
  static constexpr T cubic = T(0.07135481627260025);

  CUDARELU_FN static T value(T x) { return x * math::multiply_add(cubic, x * x, linear); }
  CUDARELU_FN static T slope(T x) { return math::multiply_add(3 * cubic, x * x, linear); }
  CUDARELU_FN static T curvature(T x) { return 6 * cubic * x; }
};

}  // namespace detail

/// max(x, 0) - |x| tail, where tail is cdf(-|x|): x (1 - tail) would round twice.
template <class T>
CUDARELU_FN T by_erf(T x) {
  const T limited = x < T(64) ? x : T(64);  // infinity times 0 is NaN
  const T above = x < T(0) ? -T(0) : x;     // -0, so that a tail of 0 gives -0
  return math::multiply_add(-std::abs(limited), math::normal(x).tail, above);
}

template <class T>
CUDARELU_FN T by_tanh(T x) {
  return x * math::logistic(detail::Argument<T>::value(x)).value;
}

template <class T>
CUDARELU_FN T slope_by_erf(T x) {
  const math::Normal<T> normal = math::normal(x);
  return math::multiply_add(x, normal.density, normal.cdf);
}

template <class T>
CUDARELU_FN T slope_by_tanh(T x) {
  using V = detail::Argument<T>;
  const math::Logistic<T> logistic = math::logistic(V::value(x));
  return math::multiply_add(x * logistic.slope, V::slope(detail::bounded(x)), logistic.value);
}

template <class T>
CUDARELU_FN T curvature_by_erf(T x) {
  const T density = math::normal(x).density;
  return 2 * density - x * density * detail::bounded(x);
}

template <class T>
CUDARELU_FN T curvature_by_tanh(T x) {
  using V = detail::Argument<T>;
  const math::Logistic<T> logistic = math::logistic(V::value(x));
  const T bounded = detail::bounded(x);
  const T slope = V::slope(bounded);
  return 2 * logistic.slope * slope +
         x * logistic.slope * ((1 - 2 * logistic.value) * slope * slope + V::curvature(bounded));
}

}  // namespace cudarelu::gelu

#ifdef __CUDACC__

/// The same functions in float32 for epilogues on CUDA, where many instructions slow the tensor
/// cores. These take fewer, and their results differ from those above by the errors given here.
namespace cudarelu::fast {

/// One instruction; -0 becomes 0.
__device__ __forceinline__ float relu(float x) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(x));
  return result;
#else
  return cudarelu::relu(x);
#endif
}

/// x Phi(x) = max(x, 0) - |x| Phi(-|x|), where Phi is the normal distribution: no cancellation for
/// negative x. log2 Phi(-a) is nearly a parabola: `factors` are the coefficients of a polynomial.
template <std::size_t count>
__device__ __forceinline__ float gelu_by_erf(float x, const std::array<float, count>& factors) {
  const float a = fminf(fabsf(x), 14.0f);
  float power = factors.back();
#pragma unroll
  for (int i = static_cast<int>(count) - 2; i >= 0; --i) power = fmaf(power, a, factors[i]);
  return fmaf(fminf(x, -a), math::exp2(power), relu(x));  // -infinity gives NaN
}

/// For a result of type T. The polynomials are fitted on [0, 6]. Beyond, the one for float is
/// within 1 % of log2 Phi(-a) until the power rounds to 0. Its error is at most 1.5e-7, and for x >
/// -6 at most 5e-5 of the result. The error of the one for bfloat16 is 4e-4 of the result there, a
/// tenth of what the rounding may add.
template <class T = float>
__device__ __forceinline__ float gelu_by_erf(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    constexpr std::array factors{-0x1.0022dap+0f, -0x1.24f76p+0f, -0x1.e421eep-2f,
                                 -0x1.5ee2cp-5f,  0x1.24c9fep-8f, -0x1.a6f668p-13f};
    return gelu_by_erf(x, factors);
  } else {
    constexpr std::array factors{-0x1.fffe2p-1f,  -0x1.26ba7ep+0f, -0x1.d57e1p-2f,
                                 -0x1.b916e6p-5f, 0x1.1388e8p-7f,  -0x1.d57eecp-11f,
                                 0x1.d66b8ep-15f, -0x1.9675cp-20f};
    return gelu_by_erf(x, factors);
  }
}

/// x / (1 + 2^exponent), with an approximate reciprocal. With tanh.approx, which has an absolute
/// error of 5e-4, results of negative x would have few correct bits.
__device__ __forceinline__ float times_logistic(float x, float exponent) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + math::exp2(exponent)));
  return x * inverse;
}

__device__ __forceinline__ float gelu_by_tanh(float x) {
  constexpr float scale = -2.0f * 0.7978845608f * 1.4426950409f;  // -v log2(e) = x (scale + ...)
  return times_logistic(x, x * fmaf(x * x, scale * 0.044715f, scale));
}

/// For a result of type T. For halves the error is at most 6e-7 + 8e-8 |x| of the result, which is
/// -0 for x < -87.
template <class T>
__device__ __forceinline__ float silu(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return cudarelu::silu(x);
  } else {
    return times_logistic(x, x * -1.4426950409f);
  }
}

}  // namespace cudarelu::fast

#endif

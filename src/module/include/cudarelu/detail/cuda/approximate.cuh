// Arithmetic for results of 16 bits on CUDA: float32 with the GPU's approximate instructions.
#pragma once

#include "cudarelu/transcendental.h"

namespace cudarelu::onnx {

/// A float32 whose operators and functions have relative errors of up to about 2^-19, and handle
/// NaN, infinities and all magnitudes as the exact ones do. sin and cos have absolute errors.
class Approximate {
 public:
  __device__ Approximate(float value) : value_(value) {}
  __device__ Approximate(double value) : value_(static_cast<float>(value)) {}
  __device__ Approximate(int value) : value_(static_cast<float>(value)) {}
  __device__ explicit operator float() const { return value_; }

  friend __device__ Approximate operator-(Approximate x) { return -x.value_; }
  friend __device__ Approximate operator+(Approximate a, Approximate b) {
    return a.value_ + b.value_;
  }
  friend __device__ Approximate operator-(Approximate a, Approximate b) {
    return a.value_ - b.value_;
  }
  friend __device__ Approximate operator*(Approximate a, Approximate b) {
    return a.value_ * b.value_;
  }
  /// a * scale * (1 / (b * scale)): the reciprocal is normal, and one for all quotients by b.
  friend __device__ Approximate operator/(Approximate a, Approximate b) {
    const float size = fabsf(b.value_);
    const float scale = size > 0x1p126f ? 0x1p-2f : size < 0x1p-126f ? 0x1p24f : 1.0f;
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b.value_ * scale));
    return a.value_ * scale * reciprocal;
  }
  friend __device__ bool operator<(Approximate a, Approximate b) { return a.value_ < b.value_; }
  friend __device__ bool operator>(Approximate a, Approximate b) { return a.value_ > b.value_; }
  friend __device__ bool operator<=(Approximate a, Approximate b) { return a.value_ <= b.value_; }
  friend __device__ bool operator>=(Approximate a, Approximate b) { return a.value_ >= b.value_; }
  friend __device__ bool operator==(Approximate a, Approximate b) { return a.value_ == b.value_; }
  friend __device__ bool operator!=(Approximate a, Approximate b) { return a.value_ != b.value_; }

 private:
  float value_;
};

namespace approximate {

/// condition ? a : b, where both are computed: a branch would keep the elements of a thread apart.
/// Not for conditions that the compiler knows.
__device__ __forceinline__ float select(bool condition, float a, float b) {
  float result;
  asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; selp.f32 %0, %1, %2, p; }"
      : "=f"(result)
      : "f"(a), "f"(b), "r"(static_cast<int>(condition)));
  return result;
}

/// 2^x, also where that is subnormal.
__device__ __forceinline__ float exp2(float x) {
  float power;
  asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

/// exp(x). x log2(e) is a sum of two parts: the error of the first alone grows with |x|. Near 0 and
/// infinity, where the second part has no effect, it would make NaN.
__device__ __forceinline__ float exp(float x) {
  constexpr float high = 1.44269502f;
  constexpr float low = 1.92596303e-8f;
  constexpr float ln2 = 0.693147181f;
  const float product = x * high;
  const float lost = fmaf(x, low * ln2, fmaf(x, high, -product) * ln2);
  const float power = exp2(product);
  return fabsf(product) < 126.0f ? fmaf(power, lost, power) : power;
}

/// log(u), where u is 1 + d, rounded.
__device__ __forceinline__ float log(float u, float d) {
  float log2;
  asm("lg2.approx.f32 %0, %1;" : "=f"(log2) : "f"(u));
  // The series of log(1 + d): the instruction has an absolute error of 2^-22 near 1.
  const float series = d * math::polynomial(d, 1.0f, -0.5f, 0.333333333f, -0.25f, 0.2f);
  return select(fabsf(d) < 0.0625f, series, log2 * 0.693147181f);
}

__device__ __forceinline__ float expm1(float x) {
  const float series = math::polynomial(x, 1.0f, 0.5f, 0.166666667f, 0.0416666667f, 0.00833333333f);
  return select(fabsf(x) < 0.25f, x * series, exp(x) - 1);
}

/// |x|, bounded to where the functions are at their limits. NaN stays.
__device__ __forceinline__ float magnitude(float x, float bound) {
  return fabsf(x) > bound ? bound : fabsf(x);
}

/// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26 and, for small x, 7.1.5.
__device__ __forceinline__ float erf(float x) {
  const float square = x * x;
  const float series = math::polynomial(square, 1.128379167f, -0.376126389f, 0.112837917f,
                                        -0.0268661706f, 0.00522397763f, -0.000854832703f);
  const float a = magnitude(x, 6.0f);
  const float t = __fdividef(1.0f, fmaf(0.3275911f, a, 1.0f));
  const float tail = t * math::polynomial(t, 0.254829592f, -0.284496736f, 1.421413741f,
                                          -1.453152027f, 1.061405429f);
  const float large = copysignf(fmaf(-tail, math::exp2(a * a * -1.44269504f), 1.0f), x);
  return select(fabsf(x) < 0.5f, x * series, x != x ? x : large);
}

__device__ __forceinline__ float sin(float x) {
  return math::SmallAngles::is_large(x) ? sinf(x) : math::detail::sin_of_small(x);
}

__device__ __forceinline__ float cos(float x) {
  return math::SmallAngles::is_large(x) ? cosf(x) : math::detail::cos_of_small(x);
}

__device__ __forceinline__ float sqrt(float x) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

}  // namespace approximate

__device__ __forceinline__ Approximate exp(Approximate x) { return approximate::exp(float(x)); }
__device__ __forceinline__ Approximate expm1(Approximate x) { return approximate::expm1(float(x)); }
__device__ __forceinline__ Approximate log(Approximate x) {
  return approximate::log(float(x), float(x) - 1);
}
__device__ __forceinline__ Approximate log1p(Approximate x) {
  return approximate::log(1 + float(x), float(x));
}
__device__ __forceinline__ Approximate log1p_of_fraction(Approximate x) { return log1p(x); }
__device__ __forceinline__ Approximate erf(Approximate x) { return approximate::erf(float(x)); }
__device__ __forceinline__ Approximate normal_cdf(Approximate x) {
  return math::normal(float(x)).cdf;
}
__device__ __forceinline__ Approximate exp2(Approximate x) { return math::exp2(float(x)); }
__device__ __forceinline__ Approximate divided_by(Approximate x, double divisor) {
  const bool is_moderate = divisor > 0x1p-120 && divisor < 0x1p120;
  return is_moderate ? Approximate(float(x) * static_cast<float>(1 / divisor)) : x / divisor;
}
__device__ __forceinline__ Approximate sin(Approximate x, math::AnyAngles = {}) {
  return approximate::sin(float(x));
}
__device__ __forceinline__ Approximate cos(Approximate x, math::AnyAngles = {}) {
  return approximate::cos(float(x));
}
__device__ __forceinline__ Approximate sin(Approximate x, math::SmallAngles& angles) {
  return math::sin(float(x), angles);
}
__device__ __forceinline__ Approximate cos(Approximate x, math::SmallAngles& angles) {
  return math::cos(float(x), angles);
}
__device__ __forceinline__ Approximate sqrt(Approximate x) { return approximate::sqrt(float(x)); }
__device__ __forceinline__ Approximate asinh(Approximate x) {
  return math::asinh_for_halves(float(x));
}
/// exp(|x|) / 2 + exp(-|x|) / 2, where exp(|x|) alone may overflow.
__device__ __forceinline__ Approximate cosh(Approximate x) {
  const float half = approximate::exp(fabsf(float(x)) - 0.693147181f);
  return half + __fdividef(0.25f, half);
}
__device__ __forceinline__ Approximate abs(Approximate x) { return fabsf(float(x)); }
__device__ __forceinline__ Approximate ceil(Approximate x) { return ceilf(float(x)); }
__device__ __forceinline__ Approximate floor(Approximate x) { return floorf(float(x)); }
__device__ __forceinline__ Approximate trunc(Approximate x) { return truncf(float(x)); }
__device__ __forceinline__ Approximate round(Approximate x) { return rintf(float(x)); }

__device__ __forceinline__ Approximate where(bool condition, Approximate a, Approximate b) {
  return approximate::select(condition, float(a), float(b));
}

// The others are the exact ones. CUDA's tanh takes fewer instructions than a series and a quotient.
__device__ __forceinline__ Approximate tanh(Approximate x) { return tanhf(float(x)); }
__device__ __forceinline__ Approximate tan(Approximate x) { return tanf(float(x)); }
__device__ __forceinline__ Approximate asin(Approximate x) { return asinf(float(x)); }
__device__ __forceinline__ Approximate acos(Approximate x) { return acosf(float(x)); }
__device__ __forceinline__ Approximate atan(Approximate x) { return atanf(float(x)); }
__device__ __forceinline__ Approximate sinh(Approximate x) { return sinhf(float(x)); }
__device__ __forceinline__ Approximate acosh(Approximate x) { return acoshf(float(x)); }
__device__ __forceinline__ Approximate atanh(Approximate x) { return atanhf(float(x)); }
__device__ __forceinline__ Approximate pow(Approximate base, Approximate exponent) {
  return powf(float(base), float(exponent));
}
__device__ __forceinline__ Approximate fmod(Approximate a, Approximate b) {
  return fmodf(float(a), float(b));
}
__device__ __forceinline__ bool is_inf(Approximate x, bool detect_negative, bool detect_positive) {
  return isinf(float(x)) && (x > 0 ? detect_positive : detect_negative);
}

}  // namespace cudarelu::onnx

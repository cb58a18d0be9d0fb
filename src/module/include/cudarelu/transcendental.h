// Elementary functions. On the GPU they are CUDA's. On the CPU they have no branches and no tables,
// so that loops are vectorised (detail/piecewise.h has a tanh with tables). Every CPU gives the
// same numbers: one without fused multiply-add calls std::fma, which is slow. In float32, tanh,
// asinh, log, log1p, tan, erf, and sin and cos from 2^15 on, are computed in float64 with fewer
// terms and rounded once. In float64, sin, cos, tan and erf are the C++ library's, which loops call
// one element at a time.
//
// The largest errors in units in the last place, which tests/kernels/transcendental_test.cpp
// checks:
//
//            exp   expm1  log   log1p  tanh  asinh  sin, cos  tan   erf
//   float32  1.0   1.6    0.51  0.51   0.51  0.51   1.6       0.51  0.54
//   float64  1.0   2.0    0.9   1.3    1.6   1.7    1.0       1.0   1.0
//
// The functions for activation_functions.h also run on the GPU, with fused multiply-add. Their
// errors on the CPU, in epsilons of the type: normal 2.2, in float64 1.8; logistic 1.0.
//
// Arguments are reduced by Cody and Waite's method (Software Manual for the Elementary Functions,
// 1980): a multiple of ln 2 is subtracted in two parts, of which the first has few bits. The rest
// is small enough for a short polynomial.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>

#include "cudarelu/detail/float16.h"

namespace cudarelu::math {

template <class T>
CUDARELU_FN T multiply_add(T a, T b, T c) {
  return std::fma(a, b, c);
}

/// first + x * second + x^2 * third ...
template <class T, class... Rest>
CUDARELU_FN T polynomial(T x, T first, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return first;
  } else {
    return multiply_add(polynomial(x, rest...), x, first);
  }
}

/// The same, with the factors in an array. A loop over them would not be unrolled before those that
/// the compiler vectorises.
template <class T, std::size_t count>
CUDARELU_FN T polynomial(T x, const std::array<T, count>& factors) {
  return std::apply([x](auto... each) { return polynomial(x, each...); }, factors);
}

namespace detail {

/// The constants of exp for a type.
template <class T>
struct Exp;
template <>
struct Exp<float> {
  static constexpr int mantissa_bits = 23;
  static constexpr int bias = 127;
  static constexpr float ln2_high = 0x1.62e4p-1f;
  static constexpr float ln2_low = 0x1.7f7d1cp-20f;
};
template <>
struct Exp<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr int bias = 1023;
  static constexpr double ln2_high = 0x1.62e42fee00000p-1;
  static constexpr double ln2_low = 0x1.a39ef35793c76p-33;
};

/// Adding this rounds to an integer: the lowest bits of the sum are a biased exponent.
template <class T>
inline constexpr T shifter = T(std::uint64_t{3} << (Exp<T>::mantissa_bits - 1)) + Exp<T>::bias;

/// 2^(k + scale), where `shifted` is k + shifter; 0 if k + scale is -bias.
template <class T>
constexpr T power_of_2(T shifted, int scale = 0) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>((std::bit_cast<Bits>(shifted) + static_cast<Bits>(scale))
                          << Exp<T>::mantissa_bits);
}

/// x = k ln 2 + r, where |r| <= ln 2 / 2.
template <class T>
struct Reduced {
  T r;
  T power;  // 2^(k + scale)

  CUDARELU_FN explicit Reduced(T x, int scale = 0) {
    const T shifted = multiply_add(x, T(1.4426950408889634), shifter<T>);
    const T k = shifted - shifter<T>;
    r = multiply_add(-k, Exp<T>::ln2_low, multiply_add(-k, Exp<T>::ln2_high, x));
    power = power_of_2(shifted, scale);
  }
};

/// (exp(r) - 1 - r) / r^2. In float32: by the polynomial with the least relative error of exp(r),
/// 3e-9.
CUDARELU_FN float rest_of_exp(float r) {
  const float square = r * r;
  const float low = polynomial(r, 0.49999994f, 0.166665211f);
  const float high =
      multiply_add(square, 0.00138146104f, polynomial(r, 0.041668389f, 0.00836871099f));
  return multiply_add(square, high, low);
}

/// In float64: terms of the series 1/2! + r/3! + ...
CUDARELU_FN double rest_of_exp(double r) {
  constexpr int terms = 12;
  constexpr auto factors = [] {  // 1/2!, 1/3!, ...
    std::array<double, terms> result{};
    double factorial = 1;
    for (int i = 0; i < terms; ++i) result[i] = 1 / (factorial *= i + 2);
    return result;
  }();
  return polynomial(r, factors);
}

/// exp(r) - 1.
template <class T>
CUDARELU_FN T expm1_of(T r) {
  return multiply_add(r * r, rest_of_exp(r), r);
}

/// exp(x) 2^scale.
template <class T>
CUDARELU_FN T exp(const Reduced<T>& x) {
  return multiply_add(expm1_of(x.r), x.power, x.power);
}

/// x, bounded to the range in which exp(x) is neither 0 nor infinity, and a little beyond. Half of
/// exp(x) has powers of 2 up to that of the largest number; twice that is infinity.
template <class T>
constexpr T bounded_exponent(T x) {
  constexpr T ln2 = T(0.6931471805599453);
  constexpr T lowest = -ln2 * (Exp<T>::bias - 1);  // its power is 0
  constexpr T highest = ln2 * (Exp<T>::bias + T(1.25));
  return x < lowest ? lowest : x > highest ? highest : x;
}

/// log((1 + s) / (1 - s)) / s - 2: `terms - 1` terms of the series 2s^2/3 + 2s^4/5 + ...
template <int terms>
CUDARELU_FN double series_of_log(double s) {
  constexpr auto factors = [] {  // 2/3, 2/5, ...
    std::array<double, terms - 1> result{};
    for (int i = 0; i < terms - 1; ++i) result[i] = 2.0 / (2 * i + 3);
    return result;
  }();
  const double square = s * s;
  return square * polynomial(square, factors);
}

/// tanh(x) = t / (t + 2), where t = exp(2x) - 1, with corrections for the rounding of the sums.
CUDARELU_FN double tanh(double x) {
  const std::uint64_t sign = std::bit_cast<std::uint64_t>(x) & (std::uint64_t{1} << 63);
  const double magnitude = std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) ^ sign);
  const Reduced<double> twice(magnitude > 20 ? 40.0 : 2 * magnitude);  // tanh(20) rounds to 1
  const double power = twice.power;
  const double rest = twice.r * twice.r * rest_of_exp(twice.r);
  const double expm1 = twice.r + rest;
  const double t = power * expm1 + (power - 1);
  const double divisor = t + 2;
  double y = t / divisor;
  const double lost = (power * expm1 - (t - (power - 1))) + power * (rest - (expm1 - twice.r));
  const double lost_too = lost + (t - (divisor - 2));
  y += t < 0x1p20 ? (lost - y * lost_too) * (0.5 - 0.5 * y) : 0.0;  // 1 / divisor is (1 - y) / 2
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(y) | sign);
}

/// tanh(x) = (exp(2x) - 1) / (exp(2x) + 1), where exp(2x) = 2^(k + r) and |r| <= 1/2: 2^r is
/// (even + odd) / (even - odd), where odd / even is tanh(r ln 2 / 2): the best rational
/// approximation of its degrees, with an error of 6e-10.
constexpr float tanh(float x) {
  const float bounded = x > 10 ? 10.0f : x < -10 ? -10.0f : x;  // tanh(10) rounds to 1
  const double exponent = 2.8853900817779268 * bounded;
  const double shifted = exponent + shifter<double>;
  const double r = exponent - (shifted - shifter<double>);
  const double square = r * r;
  const double even = 360.79762143936485 + 17.330901543706067 * square;
  const double odd = r * (125.0429269599446 + square);
  const double dividend = power_of_2(shifted) * (even + odd);
  const double divisor = even - odd;
  const auto y = static_cast<float>((dividend - divisor) / (dividend + divisor));
  return -0x1p-12f < x && x < 0x1p-12f ? x : y;  // tanh(x) rounds to a small x
}

/// log(sum) + lost / sum + shift ln 2, for a normal number `sum` over 0 and a small `lost`; precise
/// enough to be rounded to T.
template <class T>
CUDARELU_FN double log_of_sum(double sum, double lost, double shift) {
  // sum = 2^k (1 + f), where 1 + f is between sqrt(1/2) and sqrt(2); log(1 + f) is a series in
  // f / (2 + f).
  constexpr std::uint64_t bias = 1023;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(sum);
  const std::uint64_t root = std::bit_cast<std::uint64_t>(0x1.6a09e667f3bcdp-1);
  const std::uint64_t exponent = (bits - root + (bias << 52)) >> 52;  // k + bias
  // 2^-k, in a form for every k up to 1024.
  const double inverse_power = 0.5 * std::bit_cast<double>((2 * bias + 1 - exponent) << 52);
  const double f =
      (std::bit_cast<double>(bits - ((exponent - bias) << 52)) - 1) + lost * inverse_power;
  const double k = std::bit_cast<double>(exponent | std::bit_cast<std::uint64_t>(0x1p52)) -
                   (0x1p52 + bias) + shift;
  const double s = f / (2 + f);
  constexpr int terms = std::is_same_v<T, float> ? 7 : 11;
  // 2s = f - s f, in a form that keeps the bits of f.
  const double half = 0.5 * f * f;
  const double rest = half - s * (half + series_of_log<terms>(s)) - k * Exp<double>::ln2_low;
  return k * Exp<double>::ln2_high + (f - rest);
}

/// asinh(x) = log(1 + w), where w = x + (sqrt(1 + x^2) - 1).
template <class T>
CUDARELU_FN double asinh(double x) {
  const std::uint64_t sign = std::bit_cast<std::uint64_t>(x) & (std::uint64_t{1} << 63);
  const double magnitude = std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) ^ sign);
  const bool large = magnitude > 0x1p500;  // its square overflows, but asinh(x) = log(x/4) + 3 ln 2
  const double square = magnitude * magnitude;
  const double w = large ? 0.25 * magnitude : magnitude + square / (1 + std::sqrt(1 + square));
  const double sum = 1 + w;
  const double y = log_of_sum<T>(sum, w - (sum - 1), large ? 3.0 : 0.0);
  const double result = magnitude < std::numeric_limits<double>::infinity() ? y : magnitude;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(result) | sign);
}

/// y, or log's value of `sum` where that is no finite number over 0.
CUDARELU_FN double log_or_limit(double sum, double y) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const double limit = sum == 0 ? -infinity : sum > 0 ? sum : nan;
  return sum > 0 && sum < infinity ? y : limit;
}

template <class T>
CUDARELU_FN double log(double x) {
  const bool small = x < 0x1p-1022;  // subnormal
  return log_or_limit(x, log_of_sum<T>(small ? x * 0x1p54 : x, 0, small ? -54.0 : 0.0));
}

template <class T>
CUDARELU_FN double log1p(double x) {
  const double sum = 1 + x;
  const double y = log_or_limit(sum, log_of_sum<T>(sum, x - (sum - 1), 0));
  return x == 0 ? x : y;  // keeps -0
}

/// x / (2 pi) less an integer, as a sum, for every float x. As in Payne and Hanek's method (ACM
/// SIGNUM Newsletter 18, 1983), only those bits of 1 / (2 pi) count whose product with x is not a
/// multiple of 1. They are taken in parts of 29 bits, whose products with the 24 bits of x are
/// exact.
struct ReducedAngle {
  double part[4];  // the first three at most 1/2, the last one less than 2^-12

  CUDARELU_FN explicit ReducedAngle(double x) {
    const bool large = std::abs(x) > 0x1p76;  // a multiple of 2^53: some bits less count
    // Selected first: GCC would compute both fractions.
    const double first = large ? 0x1.529fc27p-54 : 0x1.45f306dp-3;
    const double second = large ? 0x1.5f47d4cp-84 : 0x1.9391054p-32;
    const double third = large ? 0x1.377036dp-112 : 0x1.4fe13abp-61;
    const double rest = large ? 0x1.14acc9e21c821p-141 : 0x1.d1f534ddc0db6p-90;
    part[0] = fraction(x * first);
    part[1] = fraction(x * second);
    part[2] = fraction(x * third);
    part[3] = x * rest;
  }

  static CUDARELU_FN double fraction(double x) { return x - std::rint(x); }
};

/// sin(2 pi (x - shift)), where `shift` is 0 or -1/4, so that the sine is that of x or the cosine.
CUDARELU_FN double sine_of(const ReducedAngle& x, double shift) {
  constexpr double halves = 0x1.8p51;  // adding this rounds to a multiple of 1/2
  const double shifted = x.part[0] + x.part[1] + x.part[2] - shift + halves;
  // The rest, at most 1/4. In this order, what is large cancels exactly.
  const double r = x.part[0] - (shifted - halves) - shift + x.part[1] + x.part[2] + x.part[3];
  // sin(2 pi r) / r, by the polynomial of its degree with the least relative error, 2e-11.
  const double square = r * r;
  const double y = r * polynomial(square, 6.283185307046691, -41.34170209692617, 81.60522369013836,
                                  -76.7041702523639, 42.00779713629441, -14.381390733714518);
  // An odd number of halves changes the sign.
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(y) ^
                               (std::bit_cast<std::uint64_t>(shifted) << 63));
}

/// sin(x + quarters pi / 2), for |x| < 2^15 and with the error 1.6: by Cody and Waite's reduction
/// to at most pi / 4, and the polynomials of their degrees with the least relative errors, 4e-9 and
/// 2e-10.
CUDARELU_FN float sine_of_small(float x, std::uint32_t quarters) {
  constexpr float rounding = 0x1.8p23f;  // adding this rounds to an integer
  const float shifted = multiply_add(x, 0x1.45f306p-1f, rounding);
  const float k = shifted - rounding;
  // The parts of pi / 2. The product with the first has few bits: what is large cancels exactly.
  // Since none is negative, -0 stays.
  float r = multiply_add(-k, 0x1.921fb4p+0f, x);
  r = multiply_add(-k, 0x1.4442dp-24f, r);
  r = multiply_add(-k, 0x1.846988p-48f, r);
  const float square = r * r;
  const float size = std::abs(r);
  const float sine = std::copysign(
      multiply_add(size * square,
                   polynomial(square, -0.16666654242f, 0.00833213710048f, -0.000195120212839f),
                   size),
      r);
  const float cosine =
      polynomial(square, 1.0f, -0.5f, 0.041666645036f, -0.00138872842056f, 2.44294370775e-5f);
  const std::uint32_t quarter = std::bit_cast<std::uint32_t>(shifted) + quarters;
  const float y = (quarter & 1) != 0 ? cosine : sine;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) ^ ((quarter & 2) << 30));
}
CUDARELU_FN float sin_of_small(float x) { return sine_of_small(x, 0); }
CUDARELU_FN float cos_of_small(float x) { return sine_of_small(x, 1); }

}  // namespace detail

/// The last argument of sin and cos. On the CPU in float32 they are four times as fast for
/// |x| < 2^15 alone: a loop calls them with SmallAngles, and again with AnyAngles if any was large.
struct AnyAngles {};
struct SmallAngles {
  std::uint32_t large = 0;  // not 0 if any was, for which the result is wrong

  static CUDARELU_FN bool is_large(float x) {  // also NaN
    constexpr auto limit = std::bit_cast<std::uint32_t>(0x1p15f);
    return (std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) >= limit;
  }
  CUDARELU_FN void note(float x) { large |= static_cast<std::uint32_t>(is_large(x)); }
};

/// exp(x), for x <= 0; 0 below about 2^-126.5 in float32 and 2^-1022.5 in float64.
template <class T>
CUDARELU_FN T exp(T x) {
  constexpr T lowest = T(-0.6931471805599453) * detail::Exp<T>::bias;  // its power is 0
  return detail::exp(detail::Reduced<T>(x < lowest ? lowest : x));
}

/// exp(x), for every x; on the CPU 0 below about 2^-125.5 in float32 and 2^-1021.5 in float64.
template <class T>
CUDARELU_FN T exp_of_any(T x) {
#ifdef __CUDA_ARCH__
  return std::exp(x);
#else
  return 2 * detail::exp(detail::Reduced<T>(detail::bounded_exponent(x), -1));
#endif
}

/// 2^x, for x <= 0, on CUDA for every x; in float32, 0 below 2^-127.
template <class T>
CUDARELU_FN T exp2(T x) {
  if constexpr (std::is_same_v<T, double>) {
#ifdef __CUDA_ARCH__
    return ::exp2(x);
#else
    return exp(x * 0.6931471805599453);
#endif
  } else {
#ifdef __CUDA_ARCH__
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    constexpr float lowest = -127;  // its power is 0
    const float exponent = x < lowest ? lowest : x;
    const float shifted = exponent + detail::shifter<float>;
    const float r = exponent - (shifted - detail::shifter<float>);
    const float power = detail::power_of_2(shifted);
    // The best polynomial of its degree for 2^r, |r| <= 1/2: the relative error is 2e-9.
    return power * polynomial(r, 1.0f, 0.693147203f, 0.240226479f, 0.0555033247f, 0.00961843736f,
                              0.00133988744f, 0.000153533619f);
#endif
  }
}

/// 1 / x, for a normal number x.
template <class T>
CUDARELU_FN T reciprocal(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) return __fdividef(1.0f, x);
#endif
  return 1 / x;
}

/// The standard normal distribution at a point.
template <class T>
struct Normal {
  T tail;     // 1 - the cdf at |x|, without cancellation
  T cdf;      // (1 + erf(x / sqrt 2)) / 2
  T density;  // exp(-x^2 / 2) / sqrt(2 pi)
};

/// The tail beyond t = |x| is exp(-t^2/2) u P(u), where u = 1 / (1 + t/4) and P is a polynomial
/// (Shepherd and Laframboise, Mathematics of Computation 36, 1981). In float32 the relative error
/// of the tail grows from 5e-7 to 4e-5 for tails of 1e-6 and less.
template <class T>
CUDARELU_FN Normal<T> normal(T x) {
  const T t = std::abs(x);
  const T bell = exp2(T(-0.7213475204444817) * (x * x));
  const T u = reciprocal(multiply_add(t, T(0.25), T(1)));
  T sum;
  if constexpr (std::is_same_v<T, float>) {
    sum = polynomial(u, 0.0987783905f, 0.112551215f, 0.0236170463f, 0.283104639f, -0.268606143f,
                     0.34223374f, -0.0916788686f);
  } else {
    sum = polynomial(u - 0.625, 0x1.de857af53ff0bp-3, 0x1.ae40ac4f79f02p-2, 0x1.19ead4b3e4c2ap-1,
                     0x1.00573167294b9p-1, 0x1.0d3cd9219e2c2p-2, 0x1.aa113214194c9p-9,
                     -0x1.7d00caef57bbep-4, -0x1.d2bcdae127523p-6, 0x1.2869802c62d96p-5,
                     0x1.00684f439ba0dp-6, -0x1.3626b68f0f24dp-6, -0x1.88c19d16092acp-8,
                     0x1.84e9d0cee1b45p-7, 0x1.ec0dd3da42083p-13, -0x1.e0d66150fb84ep-8,
                     0x1.697133727cd30p-9, 0x1.db6bdb1a2bb32p-9, -0x1.bb720c352e27ap-9,
                     -0x1.018bf3a9a242ep-10, 0x1.fdb938f4349acp-10, -0x1.143641d17ab65p-17);
  }
  const T tail = sum * u * bell;
  return {tail, x > 0 ? 1 - tail : tail, T(0.3989422804014327) * bell};
}

/// The logistic function at a point.
template <class T>
struct Logistic {
  T value;  // 1 / (1 + exp(-x))
  T slope;
};

template <class T>
CUDARELU_FN Logistic<T> logistic(T x) {
  const T power = exp2(T(-1.4426950408889634) * std::abs(x));
  const T larger = reciprocal(1 + power);
  const T smaller = power * larger;
  return {x > 0 ? larger : smaller, smaller * larger};
}

template <class T>
CUDARELU_FN T tanh(T x) {
#ifdef __CUDA_ARCH__
  return std::tanh(x);
#else
  return detail::tanh(x);
#endif
}

template <class T>
CUDARELU_FN T asinh(T x) {
#ifdef __CUDA_ARCH__
  return std::asinh(x);
#else
  return static_cast<T>(detail::asinh<T>(x));
#endif
}

template <class T>
CUDARELU_FN T log(T x) {
#ifdef __CUDA_ARCH__
  return std::log(x);
#else
  return static_cast<T>(detail::log<T>(x));
#endif
}

template <class T>
CUDARELU_FN T log1p(T x) {
#ifdef __CUDA_ARCH__
  return std::log1p(x);
#else
  return static_cast<T>(detail::log1p<T>(x));
#endif
}

/// log(1 + x), for 0 <= x <= 1; in float32 with an error of up to 1.9 units in the last place.
template <class T>
CUDARELU_FN T log1p_of_fraction(T x) {
#ifndef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    // The best polynomial of its degree: the relative error is 5e-9.
    return x - x * x *
                   polynomial(x, 0.499999328f, -0.333305113f, 0.249585873f, -0.196954002f,
                              0.153553958f, -0.106805553f, 0.0576644475f, -0.0202045893f,
                              0.00331847401f);
  }
#endif
  return log1p(x);
}

/// In float64 that of the C++ library, as cos and tan.
template <class T>
CUDARELU_FN T sin(T x, AnyAngles = {}) {
#ifndef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    const auto large = static_cast<float>(detail::sine_of(detail::ReducedAngle(x), 0));
    return SmallAngles::is_large(x) ? large : detail::sin_of_small(x);
  }
#endif
  return std::sin(x);
}

template <class T>
CUDARELU_FN T cos(T x, AnyAngles = {}) {
#ifndef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    const auto large = static_cast<float>(detail::sine_of(detail::ReducedAngle(x), -0.25));
    return SmallAngles::is_large(x) ? large : detail::cos_of_small(x);
  }
#endif
  return std::cos(x);
}

CUDARELU_FN float sin(float x, SmallAngles& angles) {
  angles.note(x);
  return detail::sin_of_small(x);
}

CUDARELU_FN float cos(float x, SmallAngles& angles) {
  angles.note(x);
  return detail::cos_of_small(x);
}

template <class T>
CUDARELU_FN T tan(T x) {
#ifndef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    const detail::ReducedAngle angle(x);
    const auto y = static_cast<float>(detail::sine_of(angle, 0) / detail::sine_of(angle, -0.25));
    return x == 0 ? x : y;  // keeps -0
  }
#endif
  return std::tan(x);
}

/// In float64 that of the C++ library.
template <class T>
CUDARELU_FN T erf(T x) {
#ifndef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    const double bounded = x > 4 ? 4.0 : x < -4 ? -4.0 : x;  // erf(4) rounds to 1
    // The best rational approximation of its degrees, up to 3.92: the relative error is 2e-9.
    const double square = bounded * bounded;
    const double dividend =
        polynomial(square, 4549546.814738726, 775839.5128378727, 224047.65359465792,
                   16901.270255268904, 1634.0347474783073, 26.495428001738656);
    const double divisor =
        polynomial(square, 4031930.877050373, 2031547.175995231, 472544.07690102205,
                   65342.56672617536, 5670.444306741997, 286.21943213193566, 1.0);
    return static_cast<float>(bounded * dividend / divisor);
  }
#endif
  return std::erf(x);
}

/// exp(x) - 1.
template <class T>
CUDARELU_FN T expm1(T x) {
#ifdef __CUDA_ARCH__
  return std::expm1(x);
#else
  const detail::Reduced<T> reduced(detail::bounded_exponent(x), -1);
  const T y = 2 * multiply_add(reduced.power, detail::expm1_of(reduced.r), reduced.power - T(0.5));
  constexpr T overflow = T(0.6931471805599453) * (detail::Exp<T>::bias + 1);
  constexpr T small = std::numeric_limits<T>::epsilon() / 4;  // below, x is the rounded result
  const T bounded = x >= overflow ? std::numeric_limits<T>::infinity() : y;
  return -small < x && x < small ? x : bounded;
#endif
}

#ifdef __CUDACC__
/// asinh(x) with a relative error of 2^-20, for results of 16 bits: an eighth of the instructions.
__device__ __forceinline__ float asinh_for_halves(float x) {
  const float magnitude = fabsf(x);
  const float square = magnitude * magnitude;
  const float series =
      polynomial(square, 1.0f, -0.1666666667f, 0.075f, -0.0446428571f, 0.0303819444f);
  float root = square + 1;
  asm("sqrt.approx.f32 %0, %0;" : "+f"(root));
  root = magnitude > 0x1p14f ? magnitude : root;  // its square may overflow
  float log2;
  asm("lg2.approx.f32 %0, %1;" : "=f"(log2) : "f"(fmaf(0.5f, magnitude, 0.5f * root)));
  const float large = copysignf(fmaf(log2, 0.693147181f, 0.693147181f), x);
  return magnitude < 0.25f ? x * series : large;
}
#endif

}  // namespace cudarelu::math

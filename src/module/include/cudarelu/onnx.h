// The elementwise operators of ONNX as functions, for functors: y = onnx::hard_swish(x).
//
// They follow ONNX's operators of the same names for all numbers, also NaN, infinities and -0. T is
// float, double or, on CUDA, Approximate. sin, cos, tan, tanh, asinh, erf and what is made of exp
// and log have the accuracy of transcendental.h. The other functions with a name of the C++ library
// are that library's, as sin, cos, tan and erf are in float64: loops on the CPU call them one
// element at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cudarelu/activation_functions.h"
#include "cudarelu/detail/piecewise.h"  // for generated functors
#include "cudarelu/transcendental.h"
#ifdef __CUDACC__
#include "cudarelu/detail/cuda/approximate.cuh"
#endif

namespace cudarelu::onnx {

using math::log, math::log1p, math::log1p_of_fraction, math::expm1;
using math::sin, math::cos, math::tan, math::tanh, math::asinh, math::erf;
using std::abs, std::sqrt, std::ceil, std::floor, std::trunc;
using std::asin, std::acos, std::atan, std::sinh, std::cosh, std::acosh, std::atanh;

/// To the nearest integer; of two, to the even one.
template <class T>
CUDARELU_FN T round(T x) {
  return std::rint(x);
}

template <class T>
CUDARELU_FN T exp(T x) {
  return math::exp_of_any(x);
}

template <class T>
CUDARELU_FN T reciprocal(T x) {
  return T(1) / x;
}

/// Where, for a condition that depends on elements: Approximate computes both.
template <class T>
CUDARELU_FN T where(bool condition, T a, T b) {
  return condition ? a : b;
}

/// -1, 0 or 1.
template <class T>
CUDARELU_FN T sign(T x) {
  return x > 0 ? T(1) : x < 0 ? T(-1) : x == 0 ? T(0) : x;
}

/// NaN if a or b is NaN.
template <class T>
CUDARELU_FN T max(T a, T b) {
  return a > b || a != a ? a : b;
}

/// NaN if a or b is NaN.
template <class T>
CUDARELU_FN T min(T a, T b) {
  return a < b || a != a ? a : b;
}

/// min(max(x, low), high).
template <class T>
CUDARELU_FN T clip(T x, T low, T high) {
  const T raised = x < low ? low : x;
  return raised > high ? high : raised;
}

template <class T>
CUDARELU_FN T pow(T base, T exponent) {
  return std::pow(base, exponent);
}

/// (1 + erf(x / sqrt 2)) / 2, without cancellation.
template <class T>
CUDARELU_FN T normal_cdf(T x) {
  return math::normal(x).cdf;
}

/// 2^x, for x <= 0; in float32 0 below 2^-127 on the CPU, below 2^-126 on CUDA.
template <class T>
CUDARELU_FN T exp2(T x) {
  return math::exp2(x);
}

/// x / divisor, for a constant. In float32 by two multiplications, as x * (high + low) with the
/// parts of 1 / divisor and one rounding (Brisebarre and Muller, IEEE Transactions on Computers 57,
/// 2008): below 2^-100, the result may differ by a unit in the last place. The parts have one sign,
/// so that infinity stays.
template <class T>
CUDARELU_FN T divided_by(T x, double divisor) {
  if constexpr (std::is_same_v<T, float>) {
    const double exact = 1 / static_cast<double>(static_cast<float>(divisor));
    const auto nearest = static_cast<float>(exact);
    const bool is_larger = std::abs(static_cast<double>(nearest)) > std::abs(exact);
    const auto high =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) - (is_larger ? 1 : 0));
    const auto low = static_cast<float>(exact - high);
    const double size = std::abs(exact);
    if (size > 0x1p-90 && size < 0x1p90) {
      return low == 0 ? x * high : math::multiply_add(x, high, x * low);
    }
  }
  return x / T(divisor);
}

/// base^exponent for a small exponent that is a constant, by multiplications.
template <int exponent, class T>
CUDARELU_FN T power(T base) {
  static_assert(exponent >= 1);
  if constexpr (exponent == 1) {
    return base;
  } else if constexpr (exponent % 2 == 0) {
    return power<exponent / 2>(base * base);
  } else {
    return base * power<exponent - 1>(base);
  }
}

/// Mod with fmod = 1: the remainder with the sign of a.
template <class T>
CUDARELU_FN T fmod(T a, T b) {
  return std::fmod(a, b);
}

template <class T>
CUDARELU_FN T relu(T x) {
  return cudarelu::relu(x);
}

template <class T>
CUDARELU_FN T leaky_relu(T x, T alpha) {
  return x < 0 ? alpha * x : x;
}

template <class T>
CUDARELU_FN T prelu(T x, T slope) {
  return x > 0 ? x : slope * x;
}

template <class T>
CUDARELU_FN T thresholded_relu(T x, T alpha) {
  return x > alpha ? x : T(0);
}

template <class T>
CUDARELU_FN T elu(T x, T alpha) {
  return x > 0 ? x : alpha * expm1(x);
}

template <class T>
CUDARELU_FN T selu(T x, T alpha, T gamma) {
  return gamma * elu(x, alpha);
}

/// 1 / (1 + exp(-x)).
template <class T>
CUDARELU_FN T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

template <class T>
CUDARELU_FN T hard_sigmoid(T x, T alpha, T beta) {
  return clip(alpha * x + beta, T(0), T(1));
}

template <class T>
CUDARELU_FN T hard_swish(T x) {
  return x * hard_sigmoid(x, T(1.0 / 6), T(0.5));
}

/// log(1 + exp(x)), which does not overflow.
template <class T>
CUDARELU_FN T softplus(T x) {
  return (x < 0 ? T(0) : x) + log1p_of_fraction(exp(-abs(x)));
}

template <class T>
CUDARELU_FN T softsign(T x) {
  return x / (T(1) + abs(x));
}

/// x tanh(softplus(x)) = x n / (n + 2), where n = e (e + 2) and e = exp(x). Above 20, n is large.
template <class T>
CUDARELU_FN T mish(T x) {
  const T e = exp(x > 20 ? T(20) : x);
  const T n = e * (e + T(2));
  return x * (n / (n + T(2)));
}

template <class T>
CUDARELU_FN T shrink(T x, T bias, T lambd) {
  return x < -lambd ? x + bias : x > lambd ? x - bias : T(0);
}

template <class T>
CUDARELU_FN bool is_nan(T x) {
  return x != x;
}

/// Whether x is an infinity of a sign that is asked for.
template <class T>
CUDARELU_FN bool is_inf(T x, bool detect_negative, bool detect_positive) {
  return std::isinf(x) && (x > 0 ? detect_positive : detect_negative);
}

}  // namespace cudarelu::onnx

// GELU and its first two derivatives, in both of PyTorch's forms: x cdf(x) of the normal
// distribution, which has erf in it, and x logistic(v), where v = 2 sqrt(2/pi) (x + 0.044715 x^3),
// which is (1 + tanh(v/2)) / 2.
//
// As the formulas have it: +inf stays, -inf and NaN give NaN; the derivatives of infinities are
// NaN. Of x so large that its powers overflow, the limit. For epilogues of other kernels too.
#pragma once

#include "transcendental.h"

namespace cudarelu::gelu {
namespace detail {

/// x where it is small enough for its powers; what is computed with the rest no longer counts.
template <class T>
CUDARELU_FN T bounded(T x) {
  const T large = 64;
  return x > large ? large : x < -large ? -large : x;
}

/// v, and its derivatives.
template <class T>
struct Argument {
  static constexpr T linear = T(1.5957691216057308);
  static constexpr T cubic = T(0.07135481627260025);

  CUDARELU_FN static T value(T x) { return x * (linear + cubic * (x * x)); }
  CUDARELU_FN static T slope(T x) { return linear + 3 * cubic * (x * x); }
  CUDARELU_FN static T curvature(T x) { return 6 * cubic * x; }
};

}  // namespace detail

template <class T>
CUDARELU_FN T by_erf(T x) {
  return x * math::normal(x).cdf;
}

template <class T>
CUDARELU_FN T by_tanh(T x) {
  return x * math::logistic(detail::Argument<T>::value(x)).value;
}

template <class T>
CUDARELU_FN T slope_by_erf(T x) {
  const math::Normal<T> normal = math::normal(x);
  return normal.cdf + x * normal.density;
}

template <class T>
CUDARELU_FN T slope_by_tanh(T x) {
  using V = detail::Argument<T>;
  const math::Logistic<T> logistic = math::logistic(V::value(x));
  return logistic.value + x * logistic.slope * V::slope(detail::bounded(x));
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

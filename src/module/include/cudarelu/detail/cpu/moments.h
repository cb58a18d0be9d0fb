// The mean and the variance of rows on the CPU.
#pragma once

#include <cmath>

#include "cudarelu/detail/cpu/rows.h"

namespace cudarelu::cpu {

/// Computes (x - mean) / sqrt(variance + eps). The mean has two parts, since C alone may not be
/// precise enough for a mean that is much larger than the deviation.
template <class C>
struct Normaliser {
  C base;
  C scale;
  C shift;

  C operator()(C x) const { return math::multiply_add(x - base, scale, shift); }
};

/// The Normaliser of a row of n elements.
template <Isa isa = Isa::unknown, Length length = Length::any, class T>
Normaliser<Compute<T>> normaliser_of(const T* x, std::int64_t n, double eps) {
  using C = Compute<T>;
  const auto count = static_cast<double>(n);
  // The sum of differences is exact for a row of one value, and for most numbers that are far from
  // 0 and near one another.
  const C first = n > 0 ? load(x[0]) : C(0);
  double apart = sum_of_row<isa, length>(x, n, [&](C value) { return value - first; }) / count;
  C base = static_cast<C>(first + apart);
  double rest = apart - (static_cast<double>(base) - static_cast<double>(first));
  if (!std::isfinite(rest)) [[unlikely]] {  // a difference overflowed, or an element is not finite
    const double mean = rare_mean_of_row(x, n);
    base = static_cast<C>(mean);
    rest = mean - static_cast<double>(base);
  }
  const double squares = sum_of_squares<isa, length>(x, n, [&](C value) { return value - base; });
  const double scale = 1 / std::sqrt(squares / count - rest * rest + eps);
  return {base, static_cast<C>(scale), static_cast<C>(-rest * scale)};
}

}  // namespace cudarelu::cpu

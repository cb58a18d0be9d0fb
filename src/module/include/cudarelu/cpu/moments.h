// The mean and the variance of rows on the CPU.
#pragma once

#include <cmath>

#include "cudarelu/cpu/rows.h"

namespace cudarelu::cpu {

/// Computes (x - mean) / sqrt(variance + eps). The mean has two parts, since C alone may not be
/// precise enough for a mean that is much larger than the deviation.
template <class C>
struct Normaliser {
  C base;
  C scale;
  C shift;

  C operator()(C x) const { return (x - base) * scale + shift; }
};

/// The Normaliser of a row of n elements.
template <Isa isa = Isa::unknown, class T>
Normaliser<Compute<T>> normaliser_of(const T* x, std::int64_t n, double eps) {
  using C = Compute<T>;
  const auto count = static_cast<double>(n);
  const double mean = mean_of_row<isa>(x, n);
  const C base = static_cast<C>(mean);
  const double rest = mean - static_cast<double>(base);
  const double squares =
      sum_of_row<isa>(x, n, [&](C value) { return (value - base) * (value - base); });
  const double scale = 1 / std::sqrt(squares / count - rest * rest + eps);
  return {base, static_cast<C>(scale), static_cast<C>(-rest * scale)};
}

}  // namespace cudarelu::cpu

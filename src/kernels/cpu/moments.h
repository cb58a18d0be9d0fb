// The mean and the variance of rows on the CPU.
#pragma once

#include <cmath>

#include "cpu/rows.h"

namespace cudarelu::cpu {

/// What (x - mean) / sqrt(variance + eps) is computed by: the mean in two parts, since it may not
/// fit C well enough where the variance is much smaller.
template <class C>
struct Normaliser {
  C base;
  C scale;
  C shift;

  C operator()(C x) const { return (x - base) * scale + shift; }
};

/// Of a row of n elements.
template <class T>
Normaliser<Compute<T>> normaliser_of(const T* x, std::int64_t n, double eps) {
  using C = Compute<T>;
  const auto count = static_cast<double>(n);
  Block<C> block;
  Sum total;
  for_each_block<T>(n, [&](std::int64_t first, std::int64_t size) {
    const C* const values = read(x + first, size, block);
    total.add(size, [&](std::int64_t i) { return values[i]; });
  });
  const double mean = total.total() / count;
  const C base = static_cast<C>(mean);
  const double rest = mean - static_cast<double>(base);
  Sum squares;
  for_each_block<T>(n, [&](std::int64_t first, std::int64_t size) {
    const C* const values = read(x + first, size, block);
    squares.add(size, [&](std::int64_t i) { return (values[i] - base) * (values[i] - base); });
  });
  const double scale = 1 / std::sqrt(squares.total() / count - rest * rest + eps);
  return {base, static_cast<C>(scale), static_cast<C>(-rest * scale)};
}

}  // namespace cudarelu::cpu

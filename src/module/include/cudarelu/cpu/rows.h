// What the row-wise ops share on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "cudarelu/call.h"
#include "cudarelu/cpu/blocks.h"

namespace cudarelu::cpu {

/// The vector width of sums, which wait for memory if their terms need no conversion.
template <class T>
inline constexpr Width sum_width = is_narrow<T> ? Width::full : Width::half;

/// Calls body(offset of the row), or body(IsaTag, offset), for each row, on the host's threads,
/// compiled for their CPU.
template <Width width, class Body>
void for_each_row(const Call& call, const Body& body) {
  const TensorView& tensor = call.inputs[0];
  const std::int64_t columns = tensor.shape.back();
  if (columns == 0) return;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / columns);
  call.execution.parallel_for(tensor.size() / columns, grain,
                              [&](std::int64_t begin, std::int64_t end) {
                                vectorised<width>([&](auto isa) {
                                  for (std::int64_t row = begin; row < end; ++row) {
                                    detail::call_for<isa.value>(body, row * columns);
                                  }
                                });
                              });
}

/// Columns that are reduced side by side. GCC unrolls shorter loops before it vectorises them.
inline constexpr std::int64_t lanes = 32;

/// Reduces `count` lanes to one with f, half by half, which is vectorised.
template <std::size_t count, class T, class F>
T reduce(const std::array<T, count>& x, const F& f) {
  if constexpr (count == 1) {
    return x[0];
  } else {
    std::array<T, count / 2> halves;
    for (std::size_t i = 0; i < count / 2; ++i) halves[i] = f(x[i], x[i + count / 2]);
    return reduce(halves, f);
  }
}

/// Terms that Sum adds at once: of narrow elements, a block of this size stays in registers.
inline constexpr std::int64_t sum_block_size = 4 * lanes;

/// Rows of up to `short_row` elements have sums and maxima in few lanes: the reduction of 32 takes
/// longer than such a row.
inline constexpr std::int64_t few_lanes = 8;
inline constexpr std::int64_t short_row = sum_block_size - 1;

/// f(lane, i) for n numbers, `count` lanes at a time. The condition becomes a mask.
template <std::int64_t count, class F>
void for_lanes(std::int64_t n, const F& f) {
  std::int64_t i = 0;
  for (; i + count <= n; i += count) {
    for (std::int64_t lane = 0; lane < count; ++lane) f(lane, i + lane);
  }
  for (std::int64_t lane = 0; lane < count; ++lane) {
    if (i + lane < n) f(lane, i + lane);
  }
}

template <class C>
C larger(C a, C b) {
  return a < b ? b : a;
}

/// The maximum of a short row; ignores NaN.
template <class C>
C maximum_of_few(const C* x, std::int64_t n) {
  std::array<C, few_lanes> values;
  values.fill(-std::numeric_limits<C>::infinity());
  for_lanes<few_lanes>(
      n, [&](std::int64_t lane, std::int64_t i) { values[lane] = larger(values[lane], x[i]); });
  return reduce(values, larger<C>);
}

/// The maximum of numbers that come in blocks; ignores NaN.
template <class C>
class Maximum {
 public:
  Maximum() { values_.fill(-std::numeric_limits<C>::infinity()); }

  void add(const C* x, std::int64_t n) {
    std::array<C, lanes> values = values_;  // a copy, which stays in registers
    for (std::int64_t i = 0; i + lanes <= n; i += lanes) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        values[lane] = larger(values[lane], x[i + lane]);
      }
    }
    for (std::int64_t i = n - n % lanes; i < n; ++i) values[0] = larger(values[0], x[i]);
    values_ = values;
  }
  C value() const { return reduce(values_, larger<C>); }

 private:
  std::array<C, lanes> values_;
};

/// A sum whose order depends only on the number of terms: four terms at a time are added in their
/// own type, then in float64.
class Sum {
 public:
  /// Adds term(0), ..., term(n - 1). Except in the last call, n is a multiple of sum_block_size.
  template <class Term>
  void add(std::int64_t n, const Term& term) {
    std::array<double, lanes> totals = totals_;  // a copy, which stays in registers
    std::int64_t i = 0;
    for (; i + sum_block_size <= n; i += sum_block_size) {
      for (std::int64_t j = i; j < i + lanes; ++j) {
        totals[j - i] += (term(j) + term(j + lanes)) + (term(j + 2 * lanes) + term(j + 3 * lanes));
      }
    }
    for (; i + lanes <= n; i += lanes) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) totals[lane] += term(i + lane);
    }
    const std::int64_t rest = n % lanes;
    for (std::int64_t lane = 0; lane < rest; ++lane) totals[lane] += term(n - rest + lane);
    totals_ = totals;
  }
  double total() const { return reduce(totals_, std::plus<double>()); }

 private:
  std::array<double, lanes> totals_{};
};

/// term(0) + ... + term(n - 1) for a short row.
template <class Term>
double sum_of_few(std::int64_t n, const Term& term) {
  std::array<double, few_lanes> totals{};
  for_lanes<few_lanes>(n, [&](std::int64_t lane, std::int64_t i) { totals[lane] += term(i); });
  return reduce(totals, std::plus<double>());
}

/// The sum of term(x[i]) over a row of n elements.
template <Isa isa = Isa::unknown, class T, class Term>
double sum_of_row(const T* x, std::int64_t n, const Term& term) {
  using C = Compute<T>;
  Block<C> block;
  if (n <= short_row) {
    const C* const values = read<isa>(x, n, block);
    return sum_of_few(n, [&](std::int64_t i) { return term(values[i]); });
  }
  Sum sum;
  for_each_block<T, sum_block_size>(n, [&](std::int64_t first, std::int64_t count) {
    const C* const values = read<isa>(x + first, count, block);
    sum.add(count, [&](std::int64_t i) { return term(values[i]); });
  });
  return sum.total();
}

/// The mean of a row of n elements, which is finite if they are.
template <Isa isa = Isa::unknown, class T>
double mean_of_row(const T* x, std::int64_t n) {
  using C = Compute<T>;
  const auto count = static_cast<double>(n);
  const double mean = sum_of_row<isa>(x, n, [](C value) { return value; }) / count;
  if (std::isfinite(mean)) return mean;
  // The sum overflowed, unless an element is not finite. No sum of terms this small overflows.
  constexpr double small = 0x1p-64;
  constexpr double largest = small * std::numeric_limits<double>::max();
  const double scaled = sum_of_row<isa>(x, n, [](C value) { return value * small; }) / count;
  return (std::isfinite(scaled) ? std::clamp(scaled, -largest, largest) : scaled) / small;
}

}  // namespace cudarelu::cpu

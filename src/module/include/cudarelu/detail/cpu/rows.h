// What the row-wise ops share on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "cudarelu/call.h"
#include "cudarelu/detail/cpu/blocks.h"
#include "cudarelu/transcendental.h"

namespace cudarelu::cpu {

/// The vector width of sums, which wait for memory if their terms need no conversion.
template <class T>
inline constexpr Width sum_width = is_narrow<T> ? Width::full : Width::half;

/// Calls body(IsaTag, begin, end) for parts of the rows, on the host's threads, compiled for their
/// CPU.
template <Width width, class Body>
void for_parts_of_rows(const Call& call, const Body& body) {
  const TensorView& tensor = call.inputs[0];
  const std::int64_t columns = tensor.shape.back();
  if (columns == 0) return;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / columns);
  call.execution.parallel_for(tensor.size() / columns, grain,
                              [&](std::int64_t begin, std::int64_t end) {
                                vectorised<width>([&](auto isa) { body(isa, begin, end); });
                              });
}

/// Calls body(offset of the row), or body(IsaTag, offset), for each row, on the host's threads,
/// compiled for their CPU.
template <Width width, class Body>
void for_each_row(const Call& call, const Body& body) {
  const std::int64_t columns = call.inputs[0].shape.back();
  for_parts_of_rows<width>(call, [&](auto isa, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      detail::call_for<isa.value>(body, row * columns);
    }
  });
}

/// A number of rows that the compiler knows.
template <std::int64_t rows>
using Rows = std::integral_constant<std::int64_t, rows>;

/// With weights and results, rows from this size on do not fit the L1 cache.
inline constexpr std::int64_t long_row_bytes = 8192;

/// Several rows of up to this size fit the L2 cache.
inline constexpr std::int64_t max_group_row_bytes = 65536;

/// Calls body(Rows, first row) for groups of `group` rows if `by_groups`, and for each of the
/// others.
template <std::int64_t group, class Body>
void for_groups_of_rows(std::int64_t begin, std::int64_t end, bool by_groups, const Body& body) {
  std::int64_t row = begin;
  for (; by_groups && row + group <= end; row += group) body(Rows<group>(), row);
  for (; row < end; ++row) body(Rows<1>(), row);
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

/// Calls body(inputs, results, elements), with pointers to the type of arithmetic, for blocks of
/// the short rows from `begin` to `end`, which are converted together. Where they are converted,
/// the results take the place of the last input.
template <Isa isa, std::size_t inputs, class T, class Body>
void for_blocks_of_rows(const std::array<const T*, inputs>& x, T* y, std::int64_t begin,
                        std::int64_t end, std::int64_t columns, const Body& body) {
  using C = Compute<T>;
  std::array<Block<C>, inputs> blocks;
  const std::int64_t rows = block_size / columns;
  for (std::int64_t row = begin; row < end; row += rows) {
    const std::int64_t first = row * columns;
    const std::int64_t count = std::min(rows, end - row) * columns;
    std::array<const C*, inputs> values;
    for (std::size_t i = 0; i < inputs; ++i) {
      values[i] = read<isa>(x[i] + first, count, blocks[i]);
    }
    body(values, target(y + first, blocks.back()), count);
    write<isa>(y + first, count, blocks.back());
  }
}

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
    add(n, term, [&](std::int64_t i) {
      return term(i) + term(i + lanes) + term(i + 2 * lanes) + term(i + 3 * lanes);
    });
  }

  /// Adds a(0) * b(0), ..., in the same way, with fused operations.
  template <class A, class B>
  void add_products(std::int64_t n, const A& a, const B& b) {
    const auto product = [&](std::int64_t i) { return a(i) * b(i); };
    add(n, product, [&](std::int64_t i) {
      auto four = product(i);
      for (const std::int64_t j : {i + lanes, i + 2 * lanes, i + 3 * lanes}) {
        four = math::multiply_add(a(j), b(j), four);
      }
      return four;
    });
  }

  double total() const { return reduce(totals_, std::plus<double>()); }

 private:
  template <class Term, class Four>
  void add(std::int64_t n, const Term& term, const Four& four) {
    std::array<double, lanes> totals = totals_;  // a copy, which stays in registers
    std::int64_t i = 0;
    for (; i + sum_block_size <= n; i += sum_block_size) {
      for (std::int64_t j = i; j < i + lanes; ++j) totals[j - i] += four(j);
    }
    for (; i + lanes <= n; i += lanes) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) totals[lane] += term(i + lane);
    }
    const std::int64_t rest = n % lanes;
    for (std::int64_t lane = 0; lane < rest; ++lane) totals[lane] += term(n - rest + lane);
    totals_ = totals;
  }

  std::array<double, lanes> totals_{};
};

/// term(0) + ... + term(n - 1) for a short row.
template <class Term>
double sum_of_few(std::int64_t n, const Term& term) {
  std::array<double, few_lanes> totals{};
  for_lanes<few_lanes>(n, [&](std::int64_t lane, std::int64_t i) { totals[lane] += term(i); });
  return reduce(totals, std::plus<double>());
}

/// What a caller knows of a row: `few` for 1 to `short_row` elements, `many` for more. Then only
/// the sum of such rows is compiled.
enum class Length { any, few, many };

namespace detail {

/// The sum of term(x[i]) over a row of n elements; add(sum, count, values) adds those of a block.
template <Isa isa, Length length, class T, class Term, class Add>
double sum_of_blocks(const T* x, std::int64_t n, const Term& term, const Add& add) {
  using C = Compute<T>;
  Block<C> block;
  if (length == Length::few || (length == Length::any && n <= short_row)) {
    const C* const values = read<isa>(x, n, block);
    return sum_of_few(n, [&](std::int64_t i) { return term(values[i]); });
  }
  Sum sum;
  for_each_block<T, sum_block_size>(n, [&](std::int64_t first, std::int64_t count) {
    add(sum, count, read<isa>(x + first, count, block));
  });
  return sum.total();
}

}  // namespace detail

/// The sum of term(x[i]) over a row of n elements.
template <Isa isa = Isa::unknown, Length length = Length::any, class T, class Term>
double sum_of_row(const T* x, std::int64_t n, const Term& term) {
  return detail::sum_of_blocks<isa, length>(
      x, n, term, [&](Sum& sum, std::int64_t count, const Compute<T>* values) {
        sum.add(count, [&](std::int64_t i) { return term(values[i]); });
      });
}

/// The same for the squares of term(x[i]).
template <Isa isa = Isa::unknown, Length length = Length::any, class T, class Term>
double sum_of_squares(const T* x, std::int64_t n, const Term& term) {
  using C = Compute<T>;
  return detail::sum_of_blocks<isa, length>(
      x, n, [&](C value) { return term(value) * term(value); },
      [&](Sum& sum, std::int64_t count, const C* values) {
        const auto of_block = [&](std::int64_t i) { return term(values[i]); };
        sum.add_products(count, of_block, of_block);
      });
}

namespace detail {

/// The mean of a row whose sum overflows, unless an element is not finite.
template <class T>
[[gnu::cold, gnu::flatten, gnu::noinline]] double mean_of_large(const T* x, std::int64_t n) {
  constexpr double small = 0x1p-64;  // no sum of terms this small overflows
  constexpr double largest = small * std::numeric_limits<double>::max();
  const double scaled =
      sum_of_row(x, n, [](Compute<T> value) { return value * small; }) / static_cast<double>(n);
  return (std::isfinite(scaled) ? std::clamp(scaled, -largest, largest) : scaled) / small;
}

}  // namespace detail

/// The mean of a row of n elements, which is finite if they are.
template <Isa isa = Isa::unknown, class T>
double mean_of_row(const T* x, std::int64_t n) {
  const double mean =
      sum_of_row<isa>(x, n, [](Compute<T> value) { return value; }) / static_cast<double>(n);
  return std::isfinite(mean) ? mean : detail::mean_of_large(x, n);
}

/// The same as one function for all instructions, for code that needs it for few rows.
template <class T>
[[gnu::noinline]] double rare_mean_of_row(const T* x, std::int64_t n) {
  return mean_of_row(x, n);
}

}  // namespace cudarelu::cpu

// Sizes and strides that may be symbols.
#pragma once

#include <c10/core/SymInt.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

#include "cudarelu/infer.h"

namespace cudarelu {

/// A comparison becomes a guard or, for a data-dependent size, a check at run time.
template <>
struct DimTraits<c10::SymInt> {
  static bool differ(const c10::SymInt& a, const c10::SymInt& b) {
    return !a.sym_eq(b).expect_true(__FILE__, __LINE__);
  }
  /// False for a symbol of which it is not known.
  static bool is_one(const c10::SymInt& a) {
    return a.sym_eq(1).guard_or_false(__FILE__, __LINE__);
  }
  static bool is_multiple(const c10::SymInt& a, const c10::SymInt& of) {
    if (of.maybe_as_int() == 0) return !differ(a, 0);
    return !differ(a % of, 0);
  }
  /// False for symbols: a guard would ask users to bound a size that the call checks anyway.
  static bool exceeds(const c10::SymInt& a, std::int64_t limit) {
    return a.maybe_as_int().value_or(0) > limit;
  }
  /// Accepts what symbols do not decide, as exceeds() does.
  static bool is_less(const c10::SymInt& a, std::int64_t limit) {
    return a.maybe_as_int().value_or(limit) < limit;
  }
  /// Divisors are at least 1. c10::SymInt truncates quotients of numbers but floors those of
  /// symbols.
  static std::optional<c10::SymInt> apply(Term::Kind kind, const c10::SymInt& a,
                                          const c10::SymInt& b) {
    const std::optional<std::int64_t> left = a.maybe_as_int();
    const std::optional<std::int64_t> right = b.maybe_as_int();
    if (left && right) return DimTraits<std::int64_t>::apply(kind, *left, *right);
    switch (kind) {
      case Term::Kind::add:
        return a + b;
      case Term::Kind::subtract:
        return a - b;
      case Term::Kind::multiply:
        return a * b;
      case Term::Kind::floor_divide:
      case Term::Kind::ceil_divide:
        if (right && *right < 1) return std::nullopt;
        return kind == Term::Kind::floor_divide ? a / b : (a + (b - 1)) / b;
      case Term::Kind::minimum:
        return a.min(b);
      default:
        return a.max(b);
    }
  }
  static std::string text(const c10::SymInt& dim) {
    std::ostringstream text;
    text << dim;
    return text.str();
  }
};

namespace binding {

inline bool are_equal(std::int64_t a, std::int64_t b) { return a == b; }
inline bool is_less(std::int64_t a, std::int64_t b) { return a < b; }

/// The same of symbols; false if that depends on data.
inline bool are_equal(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_eq(b).guard_or_false(__FILE__, __LINE__);
}
inline bool is_less(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_lt(b).guard_or_false(__FILE__, __LINE__);
}

}  // namespace binding
}  // namespace cudarelu

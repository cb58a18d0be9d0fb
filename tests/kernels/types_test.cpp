#include "cudarelu/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace cudarelu {
namespace {

/// Returns the value of a floating-point format with these numbers of exponent and mantissa bits.
double decode(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
  const double significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
}

template <class T>
void check_all(int exponent_bits, int mantissa_bits) {
  for (int i = 0; i < 1 << 16; ++i) {
    const T x{static_cast<std::uint16_t>(i)};
    const double expected = decode(x.bits, exponent_bits, mantissa_bits);
    const float actual = load(x);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << i;
      EXPECT_TRUE(std::isnan(load(store<T>(actual)))) << i;
    } else {
      EXPECT_EQ(actual, expected) << i;
      EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << i;
      EXPECT_EQ(store<T>(actual).bits, x.bits) << i;
    }
  }
}

TEST(Types, EveryHalfAndBFloat16RoundTrips) {
  check_all<Half>(5, 10);
  check_all<BFloat16>(8, 7);
}

/// Numbers between two neighbours of T round to the nearer one; the middle rounds to the one whose
/// last bit is 0.
template <class T>
void check_rounding(std::uint16_t largest_finite) {
  for (int i = 0; i < largest_finite; ++i) {
    const T low{static_cast<std::uint16_t>(i)};
    const T high{static_cast<std::uint16_t>(i + 1)};
    const float middle = load(low) + (load(high) - load(low)) / 2;
    const std::uint16_t even = i % 2 == 0 ? low.bits : high.bits;
    EXPECT_EQ(store<T>(middle).bits, even) << i;
    EXPECT_EQ(store<T>(-middle).bits, even | 0x8000) << i;
    EXPECT_EQ(store<T>(std::nextafter(middle, 0.0f)).bits, low.bits) << i;
    EXPECT_EQ(store<T>(std::nextafter(middle, INFINITY)).bits, high.bits) << i;
  }
}

TEST(Types, RoundsToNearestEven) {
  check_rounding<Half>(0x7bff);
  check_rounding<BFloat16>(0x7f7f);
}

TEST(Types, OverflowsToInfinity) {
  EXPECT_EQ(store<Half>(65519.996f).bits, 0x7bff);
  EXPECT_EQ(store<Half>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(store<Half>(-1e30f).bits, 0xfc00);
  EXPECT_EQ(store<BFloat16>(std::numeric_limits<float>::max()).bits, 0x7f80);
}

}  // namespace
}  // namespace cudarelu

// Tests of the elementary functions on the CPU: their errors, and that vectorized code gives the
// same numbers.
#include "cudarelu/transcendental.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "arguments.h"
#include "cudarelu/activation_functions.h"
#include "cudarelu/detail/cpu/exponential.h"
#include "cudarelu/detail/cpu/piecewise.h"
#include "cudarelu/onnx.h"

namespace cudarelu::testing {
namespace {

/// Returns numbers of every exponent and sign, and infinities, but no NaN; the same in every run.
template <class T>
std::vector<T> numbers() {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr Bits odd = static_cast<Bits>(0x9e3779b97f4a7c15);  // i * odd scatters the bits of i
  std::vector<T> values{0,
                        -T(0),
                        std::numeric_limits<T>::denorm_min(),
                        std::numeric_limits<T>::max(),
                        std::numeric_limits<T>::infinity(),
                        -std::numeric_limits<T>::infinity()};
  for (Bits i = 0; i < 400000; ++i) {
    const T value = std::bit_cast<T>(static_cast<Bits>(i * odd));
    if (value == value) values.push_back(value);
    // The range with the largest errors.
    values.push_back(
        std::ldexp(T(i % 2 == 0 ? 1 : -1) * (1 + T(i * odd >> 9) / T(odd)), i % 40 - 32));
  }
  return values;
}

/// Returns the largest error of f in units in the last place; exact(x) has a higher precision.
template <class T, class F, class Exact>
double largest_error(const std::vector<T>& values, const F& f, const Exact& exact) {
  double largest = 0;
  for (const T x : values) {
    const long double expected = exact(x);
    const T rounded = static_cast<T>(expected);
    const T actual = f(x);
    EXPECT_EQ(std::signbit(actual), std::signbit(rounded)) << x;
    if (std::isinf(rounded)) {
      EXPECT_EQ(actual, rounded) << x;
      continue;
    }
    const T magnitude = std::abs(rounded);
    const T unit = std::nextafter(magnitude, std::numeric_limits<T>::infinity()) - magnitude;
    largest = std::max(largest, static_cast<double>(std::abs(actual - expected) / unit));
  }
  return largest;
}

template <class T>
struct Limits;  // as documented in transcendental.h
template <>
struct Limits<float> {
  static constexpr double exp = 1.0, expm1 = 1.6, log = 0.51, log1p = 0.51, tanh = 0.51,
                          asinh = 0.51, sin = 1.6, tan = 0.51, erf = 0.54;
};
template <>
struct Limits<double> {
  static constexpr double exp = 1.0, expm1 = 2.0, log = 0.9, log1p = 1.3, tanh = 1.6, asinh = 1.7,
                          sin = 1.0, tan = 1.0, erf = 1.0;
};

template <class T>
class MathTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MathTest, Types);

TYPED_TEST(MathTest, ErrorsAreWithinTheLimits) {
  using T = TypeParam;
  std::vector<T> values = numbers<T>();
  std::vector<T> negative = values;
  const T lowest = std::log(std::numeric_limits<T>::min());
  std::erase_if(negative, [&](T x) { return x > 0 || x < lowest; });
  const auto exp = [](T x) { return math::exp(x); };
  const auto tanh = [](T x) { return math::tanh(x); };
  const auto asinh = [](T x) { return math::asinh(x); };
  using Wide = std::conditional_t<sizeof(T) == 4, double, long double>;
  EXPECT_LE(largest_error(negative, exp, [](T x) { return std::exp(Wide(x)); }), Limits<T>::exp);
  EXPECT_LE(largest_error(values, tanh, [](T x) { return std::tanh(Wide(x)); }), Limits<T>::tanh);
  EXPECT_LE(largest_error(values, asinh, [](T x) { return std::asinh(Wide(x)); }),
            Limits<T>::asinh);
  const auto erf = [](T x) { return math::erf(x); };
  EXPECT_LE(largest_error(values, erf, [](T x) { return std::erf(Wide(x)); }), Limits<T>::erf);
  const auto expm1 = [](T x) { return math::expm1(x); };
  EXPECT_LE(largest_error(values, expm1, [](T x) { return std::expm1(Wide(x)); }),
            Limits<T>::expm1);
  std::vector<T> positive = values;
  std::erase_if(positive, [](T x) { return x < 0; });
  const auto log = [](T x) { return math::log(x); };
  EXPECT_LE(largest_error(positive, log, [](T x) { return std::log(Wide(x)); }), Limits<T>::log);
  std::erase_if(values, [](T x) { return x < -1; });
  const auto log1p = [](T x) { return math::log1p(x); };
  EXPECT_LE(largest_error(values, log1p, [](T x) { return std::log1p(Wide(x)); }),
            Limits<T>::log1p);
}

/// Every 1009th float32: some of every exponent.
TYPED_TEST(MathTest, ErrorsOfCircularFunctionsAreWithinTheLimits) {
  using T = TypeParam;
  using Wide = std::conditional_t<sizeof(T) == 4, double, long double>;
  std::vector<T> values = numbers<T>();
  if constexpr (sizeof(T) == 4) {
    for (std::uint32_t bits = 0; bits < 0x7f800000; bits += 1009) {
      values.push_back(std::bit_cast<float>(bits));
    }
  }
  std::erase_if(values, [](T x) { return std::isinf(x); });
  const auto sin = [](T x) { return math::sin(x); };
  const auto cos = [](T x) { return math::cos(x); };
  const auto tan = [](T x) { return math::tan(x); };
  EXPECT_LE(largest_error(values, sin, [](T x) { return std::sin(Wide(x)); }), Limits<T>::sin);
  EXPECT_LE(largest_error(values, cos, [](T x) { return std::cos(Wide(x)); }), Limits<T>::sin);
  EXPECT_LE(largest_error(values, tan, [](T x) { return std::tan(Wide(x)); }), Limits<T>::tan);
}

TYPED_TEST(MathTest, ErrorOfLog1pOfFractionsIsWithinTheLimit) {
  using T = TypeParam;
  using Wide = std::conditional_t<sizeof(T) == 4, double, long double>;
  std::vector<T> values = numbers<T>();
  std::erase_if(values, [](T x) { return !(x >= 0 && x <= 1); });
  for (int i = 1; i <= 1 << 20; ++i) values.push_back(T(i) / (1 << 20));
  const auto log1p = [](T x) { return math::log1p_of_fraction(x); };
  EXPECT_LE(largest_error(values, log1p, [](T x) { return std::log1p(Wide(x)); }), 1.9);
}

/// Tests the absolute error everywhere, and the relative error of the cdf in its lower tail. The
/// numbers have all bits of the mantissa.
TYPED_TEST(MathTest, ErrorsOfDistributionsAreWithinTheLimits) {
  using T = TypeParam;
  const double unit = std::numeric_limits<T>::epsilon();
  double cdf = 0, density = 0, logistic = 0, tail = 0;
  for (int i = -800000; i <= 800000; ++i) {
    const T x = T(i) / T(40957);
    const long double wide = x;
    const math::Normal<T> normal = math::normal(x);
    const long double exact = std::erfc(-wide / std::sqrt(2.0L)) / 2;
    const auto error = [&](T y, long double expected) {
      return static_cast<double>(std::abs(y - expected)) / unit;
    };
    cdf = std::max(cdf, error(normal.cdf, exact));
    density = std::max(density, error(normal.density, std::exp(-wide * wide / 2) /
                                                          std::sqrt(2 * std::acos(-1.0L))));
    logistic = std::max(logistic, error(math::logistic(x).value, 1 / (1 + std::exp(-wide))));
    if (x > -12 && x < 0) {
      tail = std::max(tail, static_cast<double>(std::abs(normal.cdf / exact - 1)));
    }
  }
  EXPECT_LE(cdf, sizeof(T) == 4 ? 2.2 : 1.8);
  EXPECT_LE(density, 1.0);
  EXPECT_LE(logistic, 1.0);
  EXPECT_LE(tail, sizeof(T) == 4 ? 5e-5 : 1e-13);
}

/// As exact as exp and two roundings: the unit of a result can be half of that of the divisor.
TYPED_TEST(MathTest, ErrorOfSiluIsWithinTheLimit) {
  using T = TypeParam;
  using Wide = std::conditional_t<sizeof(T) == 4, double, long double>;
  const T lowest = -std::log(std::numeric_limits<T>::max());
  std::vector<T> values = numbers<T>();
  for (const T x : values) {
    if (x < lowest && std::isfinite(x)) {
      ASSERT_EQ(silu(x), 0) << x;
      ASSERT_TRUE(std::signbit(silu(x))) << x;
    }
  }
  std::erase_if(values, [&](T x) { return x <= lowest; });
  for (int i = 1; i < 400000; ++i) values.push_back(lowest + T(i) / T(4095.7));
  const auto exact = [](T x) { return x / (1 + std::exp(-Wide(x))); };
  EXPECT_LE(largest_error(values, silu<T>, exact), 2.5);
  EXPECT_TRUE(std::isnan(silu(-std::numeric_limits<T>::infinity())));
}

TYPED_TEST(MathTest, GeluOfNumbersAtTheLimits) {
  using T = TypeParam;
  const T infinity = std::numeric_limits<T>::infinity();
  for (const T x : {T(-0.0), T(-100), T(-1e30)}) {
    EXPECT_EQ(gelu::by_erf(x), 0) << x;
    EXPECT_TRUE(std::signbit(gelu::by_erf(x))) << x;
    EXPECT_TRUE(std::signbit(gelu::by_tanh(x))) << x;
  }
  EXPECT_FALSE(std::signbit(gelu::by_erf(T(0))));
  for (const T x : {T(100), T(1e30), infinity}) EXPECT_EQ(gelu::by_erf(x), x);
  for (const T x : {-infinity, std::numeric_limits<T>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(gelu::by_erf(x))) << x;
  }
}

TYPED_TEST(MathTest, ExpIsZeroBelowTheNormalNumbers) {
  using T = TypeParam;
  for (const T x : numbers<T>()) {
    if (x < std::log(std::numeric_limits<T>::min()) - 1) {
      EXPECT_EQ(math::exp(x), 0) << x;
    }
  }
}

/// Within a unit in the last place, 0 would be as near.
TYPED_TEST(MathTest, TheSmallestNumberStays) {
  const auto least = std::numeric_limits<TypeParam>::denorm_min();
  EXPECT_EQ(math::tanh(least), least);
  EXPECT_EQ(math::asinh(least), least);
  EXPECT_EQ(math::expm1(least), least);
  EXPECT_EQ(math::log1p(least), least);
  EXPECT_EQ(math::erf(least), least);
  EXPECT_EQ(math::sin(least), least);
  EXPECT_EQ(math::tan(least), least);
}

TYPED_TEST(MathTest, NaNPropagates) {
  const auto nan = std::numeric_limits<TypeParam>::quiet_NaN();
  EXPECT_TRUE(std::isnan(math::exp(nan)));
  EXPECT_TRUE(std::isnan(math::exp2(nan)));
  EXPECT_TRUE(std::isnan(math::exp_of_any(nan)));
  EXPECT_TRUE(std::isnan(silu(nan)));
  EXPECT_TRUE(std::isnan(math::normal(nan).cdf));
  EXPECT_TRUE(std::isnan(math::logistic(nan).value));
  EXPECT_TRUE(std::isnan(math::tanh(nan)));
  EXPECT_TRUE(std::isnan(math::asinh(nan)));
  EXPECT_TRUE(std::isnan(math::expm1(nan)));
  EXPECT_TRUE(std::isnan(math::erf(nan)));
  const auto infinity = std::numeric_limits<TypeParam>::infinity();
  for (const TypeParam x : {nan, infinity, -infinity}) {
    EXPECT_TRUE(std::isnan(math::sin(x))) << x;
    EXPECT_TRUE(std::isnan(math::cos(x))) << x;
    EXPECT_TRUE(std::isnan(math::tan(x))) << x;
  }
  for (const TypeParam x : {nan, TypeParam(-2), -std::numeric_limits<TypeParam>::infinity()}) {
    EXPECT_TRUE(std::isnan(math::log(x))) << x;
    EXPECT_TRUE(std::isnan(math::log1p(x))) << x;
  }
}

/// Compares the code for the instructions of this CPU with portable code.
TYPED_TEST(MathTest, VectorizedOpsGiveTheSameNumbers) {
  using T = TypeParam;
  std::vector<T> values = numbers<T>();
  std::vector<T> results(values.size());
  const std::int64_t size = std::ssize(values);
  const TensorView input{values.data(), dtype_of<T>, {&size, 1}};
  const TensorView output{results.data(), dtype_of<T>, {&size, 1}};
  const auto expect_same = [&](std::string_view name, const auto& function) {
    const auto op = std::ranges::find(op_table(), name, &Op::name);
    ASSERT_NE(op, op_table().end());
    SerialExecution execution(0);
    ASSERT_TRUE(run(*op, {&input, 1}, {&output, 1}, {}, execution).ok());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(results[i], function(values[i])) << name << " of " << values[i];
    }
  };
  if constexpr (sizeof(T) == 4) {
    expect_same("tanh", math::tanh_piecewise);
  } else {
    expect_same("tanh", math::tanh<T>);
  }
  expect_same("asinh", math::asinh<T>);
}

TEST(Piecewise, TanhIsWithinItsError) {
  std::vector<float> values = numbers<float>();
  for (std::uint32_t bits = 0; bits < 0x7f800000; bits += 1009) {
    values.push_back(std::bit_cast<float>(bits));
  }
  for (int eighths = 0; eighths <= 80; ++eighths) {  // the ends of all pieces
    const float end = static_cast<float>(eighths) / 8;
    values.insert(values.end(), {end, std::nextafter(end, 0.0f), std::nextafter(end, 10.0f)});
  }
  const auto exact = [](float x) { return std::tanh(static_cast<double>(x)); };
  EXPECT_LE(largest_error(values, math::tanh_piecewise, exact), 0.61);
  EXPECT_TRUE(std::isnan(math::tanh_piecewise(std::numeric_limits<float>::quiet_NaN())));
}

/// Compares vectors(isa, x, y, n) with one(x[i]), for the instructions of this CPU and for portable
/// code, and for the rests of vectors. Bits are compared, except those of NaN.
template <class One, class Vectors>
void expect_same_in_vectors(std::vector<float> values, const One& one, const Vectors& vectors) {
  values.insert(values.begin() + 3, std::numeric_limits<float>::quiet_NaN());
  const auto expect_same = [&](std::int64_t n) {
    constexpr float untouched = 123;
    std::vector<float> results(static_cast<std::size_t>(n) + 1);
    const auto compute = [&](auto isa) {
      std::ranges::fill(results, untouched);
      vectors(isa, values.data(), results.data(), n);
      ASSERT_EQ(results.back(), untouched);
      for (std::size_t i = 0; i + 1 < results.size(); ++i) {
        const float expected = one(values[i]);
        ASSERT_EQ(std::isnan(results[i]), std::isnan(expected)) << values[i] << " of " << n;
        if (std::isnan(expected)) continue;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(results[i]), std::bit_cast<std::uint32_t>(expected))
            << values[i] << " of " << n;
      }
    };
    compute(cpu::IsaTag<cpu::Isa::unknown>());
    cpu::vectorised<cpu::Width::half>(compute);
    cpu::vectorised<cpu::Width::full>(compute);
  };
  for (std::int64_t n = 0; n <= 40; ++n) expect_same(n);
  expect_same(std::ssize(values));
}

/// -x / 2 near 0, and -1/4 from 1/2 on.
constexpr math::PiecewisePolynomial falling(0.75f, 0,
                                            std::array<math::PiecewisePolynomial::Row, 7>{
                                                {{0, 0, -0.5f},
                                                 {0, 0, -0.5f},
                                                 {0, 0, -0.5f},
                                                 {0, 0, -0.5f},
                                                 {0.5f, -0.25f},
                                                 {0.5f, -0.25f},
                                                 {0.5f, -0.25f}}});

TEST(Piecewise, MayHaveTheOppositeSign) {
  EXPECT_EQ(falling(0.25f), -0.125f);
  EXPECT_EQ(falling(-3.0f), 0.25f);
  const auto vectors = [](auto isa, const float* x, float* y, std::int64_t n) {
    cpu::evaluate_piecewise<isa.value>(falling, x, y, n);
  };
  expect_same_in_vectors(numbers<float>(), falling, vectors);
}

TEST(Piecewise, VectorsGiveTheSameNumbers) {
  const auto vectors = [](auto isa, const float* x, float* y, std::int64_t n) {
    cpu::evaluate_piecewise<isa.value>(math::tanh_piecewise, x, y, n);
  };
  expect_same_in_vectors(numbers<float>(), math::tanh_piecewise, vectors);
}

/// Numbers that are not positive, down to where the result is 0, and those next to the limit.
std::vector<float> exponents() {
  std::vector<float> values = numbers<float>();
  std::erase_if(values, [](float x) { return x > 0; });
  for (int i = 0; i < 1 << 20; ++i) values.push_back(static_cast<float>(i) * -0x1p-13f);
  const float lowest = cpu::detail::Exponential::lowest;
  values.insert(values.end(),
                {lowest, std::nextafter(lowest, 0.0f), std::nextafter(lowest, -99.0f)});
  return values;
}

TEST(Exponentials, AreWithinTheirError) {
  std::vector<float> values = exponents();
  std::erase_if(values, [](float x) {
    const bool is_lower = x < cpu::detail::Exponential::lowest;
    EXPECT_TRUE(!is_lower || cpu::detail::exponential(x) == 0) << x;
    return is_lower;
  });
  const auto exact = [](float x) { return std::exp(static_cast<double>(x)); };
  EXPECT_LE(largest_error(values, cpu::detail::exponential, exact), 0.99);
  EXPECT_EQ(cpu::detail::exponential(0), 1);
}

TEST(Exponentials, VectorsGiveTheSameNumbers) {
  const auto vectors = [](auto isa, const float* x, float* y, std::int64_t n) {
    cpu::exponentials<isa.value>(x, 0.25f, y, n);
  };
  const auto one = [](float x) { return cpu::detail::exponential(x - 0.25f); };
  expect_same_in_vectors(exponents(), one, vectors);
}

TEST(Exponentials, EachElementHasItsBaseAndMayBeReplaced) {
  const std::vector<float> values = exponents();
  std::vector<float> bases(values.size());
  for (std::size_t i = 0; i < bases.size(); ++i) bases[i] = static_cast<float>(i % 7) * 0.25f;
  for (const std::size_t n : {std::size_t{5}, std::size_t{23}, values.size()}) {
    cpu::vectorised<cpu::Width::full>([&](auto isa) {
      std::vector<float> y = values;
      cpu::exponentials<isa.value>(y.data(), bases.data(), y.data(), static_cast<std::int64_t>(n));
      for (std::size_t i = 0; i < y.size(); ++i) {
        const float expected = i < n ? cpu::detail::exponential(values[i] - bases[i]) : values[i];
        ASSERT_EQ(y[i], expected) << i << " of " << n;
      }
    });
  }
}

TEST(Vectorised, FunctionsWithoutAnOpGiveTheSameNumbers) {
  std::vector<float> values = numbers<float>();
  std::erase_if(values, [](float x) { return std::isinf(x); });
  std::vector<float> results(values.size());
  const auto expect_same = [&](auto function) {
    cpu::vectorised<cpu::Width::full>([&] {
      cpu::for_each_index(std::ssize(values),
                          [&](std::int64_t i) { results[i] = function(values[i]); });
    });
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(results[i], function(values[i])) << values[i];
    }
  };
  expect_same([](float x) { return math::sin(x); });
  expect_same([](float x) { return math::cos(x); });
  expect_same([](float x) { return math::tan(x); });
  expect_same([](float x) { return math::erf(x); });
}

TEST(DividedBy, IsTheQuotient) {
  std::vector<float> values = numbers<float>();
  for (std::uint32_t bits = 0; bits < 1u << 23; bits += 17) {
    values.push_back(std::bit_cast<float>(0x3f800000u | bits));
  }
  for (const double divisor : {3.0, -2.5, 0.1, 0.5, 1.4142135623730951, 255.0, 1e-20, 1e35, 0.0}) {
    for (const float x : values) {
      const float quotient = x / static_cast<float>(divisor);
      const float y = onnx::divided_by(x, divisor);
      if (std::abs(quotient) < 0x1p-100f) {
        const auto unit = std::max(std::abs(quotient) * 0x1p-23f, 0x1p-149f);
        ASSERT_NEAR(y, quotient, unit) << x << " / " << divisor;
      } else if (quotient == quotient) {
        ASSERT_EQ(y, quotient) << x << " / " << divisor;
      } else {
        ASSERT_NE(y, y) << x << " / " << divisor;
      }
      ASSERT_EQ(std::signbit(y), std::signbit(quotient)) << x << " / " << divisor;
    }
  }
}

/// An angle that is not noted as large has the result of the function for all angles.
TEST(SmallAngles, HaveTheSameNumbers) {
  std::vector<float> values = numbers<float>();
  for (const float limit : {0x1p15f, -0x1p15f}) {
    values.insert(values.end(), {std::nextafter(limit, 0.0f), limit});
  }
  int small = 0;
  for (const float x : values) {
    math::SmallAngles angles;
    const float sine = math::sin(x, angles);
    const float cosine = math::cos(x, angles);
    ASSERT_EQ(angles.large != 0, !(std::abs(x) < 0x1p15f)) << x;
    if (angles.large != 0) continue;
    ++small;
    ASSERT_EQ(sine, math::sin(x)) << x;
    ASSERT_EQ(std::signbit(sine), std::signbit(math::sin(x))) << x;
    ASSERT_EQ(cosine, math::cos(x)) << x;
  }
  EXPECT_GT(small, 100000);
}

TEST(Blocks, ConvertHalvesToTheSameBits) {
  std::vector<Half> halves;
  std::vector<float> floats;
  for (std::uint32_t i = 0; i < 1 << 16; ++i) {
    halves.push_back({static_cast<std::uint16_t>(i)});
    floats.push_back(load(halves.back()));
  }
  for (std::uint32_t i = 0; i < 1 << 19; ++i) floats.push_back(std::bit_cast<float>(i * 8191));
  std::vector<float> widened(halves.size() - 1);  // not a multiple of the vector size
  std::vector<Half> narrowed(floats.size());
  const auto convert = [&](auto isa) {
    cpu::widen<isa.value>(halves.data(), widened.data(), std::ssize(widened));
    cpu::narrow<isa.value>(floats.data(), narrowed.data(), std::ssize(floats));
  };
  const auto expect_same = [&](const char* instructions) {
    for (std::size_t i = 0; i < widened.size(); ++i) {
      if (floats[i] == floats[i]) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(widened[i]), std::bit_cast<std::uint32_t>(floats[i]))
            << instructions;
      } else {
        ASSERT_TRUE(std::isnan(widened[i])) << i << ' ' << instructions;
      }
    }
    for (std::size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(narrowed[i].bits, store<Half>(floats[i]).bits) << floats[i] << ' ' << instructions;
    }
    std::ranges::fill(widened, 0.0f);
    std::ranges::fill(narrowed, Half{});
  };
  convert(cpu::IsaTag<cpu::Isa::unknown>());
  expect_same("of any CPU");
  cpu::vectorised<cpu::Width::half>(convert);
  expect_same("of half width");
  cpu::vectorised<cpu::Width::full>(convert);
  expect_same("of full width");
}

}  // namespace
}  // namespace cudarelu::testing

// Tests of the matrix product for compute capability 9.0, compared with float64.
#include "cuda/gemm/sm90_gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "activated.h"
#include "cuda_device.h"

namespace cudarelu::testing {
namespace {

struct Case {
  std::int64_t batch, m, n, k;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "batch" << c.batch << "_m" << c.m << "_n" << c.n << "_k" << c.k;
}

/// The supported layouts: a_transposed, b_transposed.
constexpr std::array layouts{std::pair{false, true}, std::pair{false, false},
                             std::pair{true, false}};

std::string layout_name(std::pair<bool, bool> layout) {
  return {layout.first ? 't' : 'n', layout.second ? 't' : 'n'};
}

Gemm gemm_of(DType dtype, const Case& c, std::pair<bool, bool> layout) {
  Gemm gemm{dtype, c.batch, c.m, c.n, c.k, nullptr, nullptr, nullptr};
  gemm.a_transposed = layout.first;
  gemm.b_transposed = layout.second;
  return gemm;
}

/// The largest relative error before rounding, of GELU for x > -6 and of SiLU for x > -64: see
/// activation_functions.h.
template <class T>
double error_of(Activation activation) {
  if (activation == Activation::silu) return 6e-6;
  return std::is_same_v<T, BFloat16> ? 4e-4 : 6e-5;
}

/// The largest error of rounding `x` to T.
template <class T>
double half_of_last_place(double x) {
  constexpr bool half = std::is_same_v<T, Half>;
  return std::ldexp(half ? 0x1p-11 : 0x1p-8, std::max(std::ilogb(x), half ? -14 : -126));
}

class Sm90Gemm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "needs CUDA: no device on this machine";
    if (!gpu::takes_sm90(gemm_of(DType::float16, {1, 8, 8, 8}, layouts[0]), 0)) {
      GTEST_SKIP() << "needs CUDA: a device of compute capability 9.0, and kernels for it";
    }
  }

  /// Fills the tensor with small multiples of 1 / `parts`, whose sums of products are exact in
  /// float32.
  template <class T>
  void fill(GuardedTensor& tensor, float parts) {
    std::uniform_int_distribution<int> values(-3, 3);
    const TensorView view = tensor.view();
    for (std::int64_t i = 0; i < view.size(); ++i) {
      static_cast<T*>(view.data)[i] = store<T>(static_cast<float>(values(random_)) / parts);
    }
  }

  /// Computes the product on the device and compares some rows and columns.
  template <class T>
  void expect(const Case& c, std::pair<bool, bool> layout, Activation activation, bool with_bias,
              bool with_sum, std::optional<Combine> combine = std::nullopt) {
    constexpr DType dtype = dtype_of<T>;
    Gemm gemm = gemm_of(dtype, c, layout);
    gemm.activation = activation;
    GuardedTensor a(dtype, {c.batch, c.m, c.k}, 0);
    GuardedTensor b(dtype, {c.batch, c.k, c.n}, 0);
    GuardedTensor bias(dtype, {c.n}, 0);
    GuardedTensor other(dtype, {c.batch, c.m, c.n}, 0);
    GuardedTensor d(dtype, {c.batch, c.m, c.n}, 0);
    GuardedTensor sum(dtype, {c.batch, c.m, c.n}, 0);
    fill<T>(a, 4);
    fill<T>(b, 16);
    fill<T>(bias, 4);
    fill<T>(other, 1);
    DeviceTensor device_a(a), device_b(b), device_bias(bias), device_d(d), device_sum(sum);
    DeviceTensor device_other(other);
    gemm.a = device_a.view().data;
    gemm.b = device_b.view().data;
    gemm.d = device_d.view().data;
    if (with_bias) gemm.bias = device_bias.view().data;
    if (with_sum) gemm.sum = device_sum.view().data;
    if (combine) {
      gemm.other = device_other.view().data;
      gemm.combine = *combine;
    }
    ASSERT_TRUE(gpu::takes_sm90(gemm, 0));
    CudaExecution execution;
    const Status status = gpu::sm90_gemm({"product", {}, {}, {}, execution}, gemm);
    ASSERT_TRUE(status.ok()) << status.message();
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
    device_d.download();
    device_sum.download();
    EXPECT_TRUE(d.intact());
    EXPECT_TRUE(sum.intact());

    const auto value = [](GuardedTensor& tensor, std::int64_t at) {
      return static_cast<double>(load(static_cast<T*>(tensor.view().data)[at]));
    };
    const bool exact = activation == Activation::none || activation == Activation::relu;
    const auto step = [](std::int64_t size) { return std::max<std::int64_t>(1, size / 61); };
    for (std::int64_t i = 0; i < c.batch; ++i) {
      for (std::int64_t row = 0; row < c.m; row += step(c.m)) {
        for (std::int64_t column = 0; column < c.n; column += step(c.n)) {
          double total = with_bias ? value(bias, column) : 0;
          for (std::int64_t l = 0; l < c.k; ++l) {
            const std::int64_t at_a = layout.first ? l * c.m + row : row * c.k + l;
            const std::int64_t at_b = layout.second ? column * c.k + l : l * c.n + column;
            total += value(a, i * c.m * c.k + at_a) * value(b, i * c.k * c.n + at_b);
          }
          const std::int64_t at = (i * c.m + row) * c.n + column;
          const double result = activated(total, activation);
          const double expected = combined(result, combine, value(other, at));
          const auto rounded = [](double x) {
            return static_cast<double>(load(store<T>(static_cast<float>(x))));
          };
          if (exact) {
            ASSERT_EQ(value(d, at), rounded(expected)) << i << " " << row << " " << column;
          } else {  // Below -6, GELU is nearly 0 and has a larger relative error.
            const double error = error_of<T>(activation) * std::abs(result) + 0x1p-25;
            const double grows = combine ? 3 : 1;  // the largest element of the other matrix
            ASSERT_NEAR(value(d, at), expected, half_of_last_place<T>(expected) + grows * error)
                << i << " " << row << " " << column << " of " << total;
          }
          if (with_sum) {
            ASSERT_EQ(value(sum, at), rounded(total));
          }
        }
      }
    }
  }

  std::mt19937 random_{7};
};

/// Sizes around those of a tile and of a stage, several matrices in a batch, and more tiles than
/// blocks. Together they use every path of the kernel.
const std::array cases{Case{1, 8, 8, 8},         Case{1, 128, 256, 64},    Case{2, 136, 264, 72},
                       Case{3, 248, 120, 520},   Case{1, 72, 1032, 1000},  Case{40, 256, 256, 256},
                       Case{1, 4104, 4104, 200}, Case{1, 1400, 6136, 1504}};

class Sm90GemmOfLayout
    : public Sm90Gemm,
      public ::testing::WithParamInterface<std::tuple<Case, std::pair<bool, bool>>> {};

TEST_P(Sm90GemmOfLayout, Multiplies) {
  const auto& [c, layout] = GetParam();
  expect<BFloat16>(c, layout, Activation::none, false, false);
  expect<Half>(c, layout, Activation::none, true, false);
}

std::string name_of_product(const ::testing::TestParamInfo<Sm90GemmOfLayout::ParamType>& info) {
  const auto& [c, layout] = info.param;
  return ::testing::PrintToString(c) + "_" + layout_name(layout);
}

INSTANTIATE_TEST_SUITE_P(, Sm90GemmOfLayout,
                         ::testing::Combine(::testing::ValuesIn(cases),
                                            ::testing::ValuesIn(layouts)),
                         name_of_product);

TEST_F(Sm90Gemm, TakesMoreThanABiasOnlyInTheLayoutOfLinearLayers) {
  alignas(16) char element[16];  // not accessed
  for (const auto& layout : layouts) {
    const auto takes = [&](const auto& change) {
      Gemm gemm = gemm_of(DType::float16, {1, 128, 128, 128}, layout);
      change(gemm);
      return gpu::takes_sm90(gemm, 0);
    };
    const bool of_linear_layer = layout == layouts[0];
    EXPECT_EQ(takes([](Gemm& gemm) { gemm.activation = Activation::relu; }), of_linear_layer);
    EXPECT_EQ(takes([&](Gemm& gemm) { gemm.other = element; }), of_linear_layer);
    EXPECT_TRUE(takes([&](Gemm& gemm) { gemm.bias = element; }));
    for (const Activation activation : activations) {
      const bool is_gelu =
          activation == Activation::gelu_erf || activation == Activation::gelu_tanh;
      const auto with_sum = [&](Gemm& gemm) {
        gemm.activation = activation;
        gemm.sum = element;
      };
      EXPECT_EQ(takes(with_sum), of_linear_layer && is_gelu);
      EXPECT_FALSE(takes([&](Gemm& gemm) {
        with_sum(gemm);
        gemm.other = element;
      }));
    }
  }
}

class Sm90GemmOfActivation : public Sm90Gemm, public ::testing::WithParamInterface<Activation> {};

std::string name_of_activation(const ::testing::TestParamInfo<Activation>& info) {
  return std::string(name_of(info.param));
}

TEST_P(Sm90GemmOfActivation, AppliesIt) {
  const Activation activation = GetParam();
  for (const bool with_bias : {false, true}) {
    for (const bool with_sum : {false, true}) {
      const bool is_gelu =
          activation == Activation::gelu_erf || activation == Activation::gelu_tanh;
      if (with_sum && !is_gelu) continue;
      SCOPED_TRACE(::testing::Message() << "bias " << with_bias << " sum " << with_sum);
      expect<BFloat16>({1, 300, 520, 512}, layouts[0], activation, with_bias, with_sum);
      expect<Half>({1, 300, 520, 512}, layouts[0], activation, with_bias, with_sum);
      expect<Half>({2, 136, 136, 136}, layouts[0], activation, with_bias, with_sum);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Sm90GemmOfActivation, CombinesWithAnotherMatrix) {
  for (const Combine combine : {Combine::add, Combine::multiply}) {
    SCOPED_TRACE(name_of(combine));
    expect<BFloat16>({1, 300, 520, 512}, layouts[0], GetParam(), true, false, combine);
    expect<Half>({1, 300, 520, 512}, layouts[0], GetParam(), false, false, combine);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(, Sm90GemmOfActivation, ::testing::ValuesIn(activations),
                         name_of_activation);

class Sm90GemmOfCase : public Sm90Gemm, public ::testing::WithParamInterface<Case> {};

TEST_P(Sm90GemmOfCase, CombinesWithAnotherMatrix) {
  for (const Combine combine : {Combine::add, Combine::multiply}) {
    SCOPED_TRACE(name_of(combine));
    expect<BFloat16>(GetParam(), layouts[0], Activation::none, true, false, combine);
    expect<Half>(GetParam(), layouts[0], Activation::silu, true, false, combine);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(, Sm90GemmOfCase, ::testing::ValuesIn(cases),
                         ::testing::PrintToStringParamName());

/// Returns the activation of `bias`, computed as the epilogue of a product of zeros.
GuardedTensor activated_on_device(GuardedTensor& bias, Activation activation) {
  const DType dtype = bias.view().dtype;
  const std::int64_t count = bias.view().size();
  GuardedTensor a(dtype, {1, 8}, 0), b(dtype, {count, 8}, 0), d(dtype, {1, count}, 0);
  for (GuardedTensor* zeros : {&a, &b}) std::ranges::fill(zeros->data(), 0);
  DeviceTensor device_a(a), device_b(b), device_bias(bias), device_d(d);
  Gemm gemm = gemm_of(dtype, {1, 1, count, 8}, layouts[0]);
  gemm.a = device_a.view().data;
  gemm.b = device_b.view().data;
  gemm.bias = device_bias.view().data;
  gemm.d = device_d.view().data;
  gemm.activation = activation;
  CudaExecution execution;
  EXPECT_TRUE(gpu::sm90_gemm({"relu", {}, {}, {}, execution}, gemm).ok());
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
  device_d.download();
  return d;
}

using Sm90GemmOfNonlinearActivation = Sm90GemmOfActivation;

TEST_P(Sm90GemmOfNonlinearActivation, PropagatesNaNAndInfinity) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::array values{std::nanf(""), infinity, 0.0f, -30.0f, -65504.0f};
  GuardedTensor bias(DType::float16, {8}, 0);
  std::ranges::fill(bias.data(), 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    static_cast<Half*>(bias.view().data)[i] = store<Half>(values[i]);
  }
  GuardedTensor d = activated_on_device(bias, GetParam());
  const auto* results = static_cast<const Half*>(d.view().data);
  EXPECT_TRUE(std::isnan(load(results[0])));
  EXPECT_EQ(load(results[1]), infinity);
  EXPECT_EQ(load(results[2]), 0);
  EXPECT_EQ(load(results[3]), 0);
  EXPECT_EQ(load(results[4]), 0);
}

INSTANTIATE_TEST_SUITE_P(, Sm90GemmOfNonlinearActivation,
                         ::testing::Values(Activation::relu, Activation::gelu_erf,
                                           Activation::gelu_tanh, Activation::silu),
                         name_of_activation);

/// Tests every number of T in (lowest, 16), as the bias of a product of zeros.
template <class T>
void expect_accurate_for_every_number(Activation activation, float lowest) {
  constexpr DType dtype = dtype_of<T>;
  std::vector<T> numbers;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const T x{static_cast<std::uint16_t>(bits)};
    if (load(x) > lowest && load(x) < 16) numbers.push_back(x);
  }
  numbers.resize(numbers.size() / 8 * 8);
  const auto count = static_cast<std::int64_t>(numbers.size());
  GuardedTensor bias(dtype, {count}, 0);
  std::ranges::copy(numbers, static_cast<T*>(bias.view().data));
  GuardedTensor d = activated_on_device(bias, activation);
  const auto* results = static_cast<const T*>(d.view().data);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double x = load(numbers[i]);
    const double expected = activated(x, activation);
    ASSERT_NEAR(load(results[i]), expected,
                half_of_last_place<T>(expected) + error_of<T>(activation) * std::abs(expected))
        << static_cast<int>(activation) << " of " << x;
  }
}

using Sm90GemmOfSmoothActivation = Sm90GemmOfActivation;

TEST_P(Sm90GemmOfSmoothActivation, IsAccurateForEveryNumber) {
  const float lowest = GetParam() == Activation::silu ? -64 : -6;
  expect_accurate_for_every_number<BFloat16>(GetParam(), lowest);
  expect_accurate_for_every_number<Half>(GetParam(), lowest);
}

INSTANTIATE_TEST_SUITE_P(, Sm90GemmOfSmoothActivation,
                         ::testing::Values(Activation::gelu_erf, Activation::gelu_tanh,
                                           Activation::silu),
                         name_of_activation);

class Sm90GemmOfRows : public Sm90Gemm, public ::testing::WithParamInterface<std::int64_t> {};

/// The engine accepts any m, except if a is transposed, [k, m], where m is the length of its rows.
TEST_P(Sm90GemmOfRows, AcceptsAnyNumber) {
  expect<BFloat16>({2, GetParam(), 136, 72}, layouts[0], Activation::none, true, false);
  expect<BFloat16>({2, GetParam(), 136, 72}, layouts[1], Activation::none, true, false);
}

INSTANTIATE_TEST_SUITE_P(, Sm90GemmOfRows, ::testing::Values(1, 3, 127, 129, 257),
                         ::testing::PrintToStringParamName());

TEST_F(Sm90Gemm, RejectsWhatTheCopyEngineCannotRead) {
  const auto takes = [](const Gemm& gemm) { return gpu::takes_sm90(gemm, 0); };
  const auto with = [](const Case& c, std::pair<bool, bool> layout) {
    return gemm_of(DType::bfloat16, c, layout);
  };
  EXPECT_TRUE(takes(with({1, 3, 8, 8}, layouts[0])));
  EXPECT_FALSE(takes(with({1, 3, 8, 12}, layouts[0])));
  EXPECT_FALSE(takes(with({1, 3, 12, 8}, layouts[0])));
  EXPECT_FALSE(takes(with({1, 12, 8, 8}, layouts[2])));
  EXPECT_TRUE(takes(with({1, 8, 8, 3}, layouts[2])));
  EXPECT_FALSE(takes(with({1, 8, 8, 8}, {true, true})));
  for (const Case& c : {Case{0, 8, 8, 8}, {1, 0, 8, 8}, {1, 8, 0, 8}, {1, 8, 8, 0}}) {
    EXPECT_FALSE(takes(with(c, layouts[0])));
  }
  EXPECT_FALSE(takes(with({1, std::int64_t{1} << 31, 8, 8}, layouts[0])));
  EXPECT_FALSE(takes(gemm_of(DType::float32, {1, 8, 8, 8}, layouts[0])));
  Gemm gemm = with({1, 8, 8, 8}, layouts[0]);
  gemm.a = reinterpret_cast<const void*>(24);
  EXPECT_FALSE(takes(gemm));
  for (const auto& layout : layouts) {
    gemm = with({1, 8, 8, 8}, layout);
    gemm.other = reinterpret_cast<const void*>(16);
    EXPECT_EQ(takes(gemm), layout == layouts[0]);
    gemm.other = reinterpret_cast<const void*>(24);
    EXPECT_FALSE(takes(gemm));
  }
}

}  // namespace
}  // namespace cudarelu::testing

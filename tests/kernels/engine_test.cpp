// Tests of every op on the CPU: writes stay within the outputs, and results do not depend on the
// division into parts.
#include <gtest/gtest.h>

#include "activated.h"
#include "activation.h"
#include "arguments.h"
#include "cpu/fused_gemm.h"
#include "cudarelu/detail/cpu/elementwise.h"

namespace cudarelu::testing {
namespace {

class EveryOp : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Op& op() const { return op_table()[GetParam()]; }
};

TEST_P(EveryOp, WritesOnlyItsOutputsAndDoesNotDependOnTheParts) {
  std::mt19937 random(1);
  for (const DType dtype : dtypes_of(op())) {
    for (const Dimensions& dimensions : edge_dimensions(op())) {
      SCOPED_TRACE(describe(op(), dtype, dimensions));
      Arguments whole = make_arguments(op(), dtype, dimensions, 1, random);
      Arguments parts = whole;
      SerialExecution at_once(0);
      const Status status = run_arguments(op(), whole, at_once);
      ASSERT_TRUE(status.ok()) << status.message();
      SerialExecution in_parts(7);
      ASSERT_TRUE(run_arguments(op(), parts, in_parts).ok());
      for (std::size_t i = 0; i < whole.outputs.size(); ++i) {
        EXPECT_TRUE(whole.outputs[i].intact());
        EXPECT_TRUE(std::ranges::equal(whole.outputs[i].data(), parts.outputs[i].data()));
      }
      for (GuardedTensor& input : whole.inputs) EXPECT_TRUE(input.intact());
    }
  }
}

TEST_P(EveryOp, RunsInPlaceIfDeclared) {
  if (op().in_place_input < 0) return;
  const auto input = static_cast<std::size_t>(op().in_place_input);
  const auto output = static_cast<std::size_t>(op().in_place_output);
  std::mt19937 random(2);
  for (const DType dtype : dtypes_of(op())) {
    for (const Dimensions& dimensions : edge_dimensions(op())) {
      SCOPED_TRACE(describe(op(), dtype, dimensions));
      Arguments apart = make_arguments(op(), dtype, dimensions, 0, random);
      Arguments over = apart;
      SerialExecution execution(0);
      ASSERT_TRUE(run_arguments(op(), apart, execution).ok());
      std::vector<TensorView> inputs;
      std::vector<TensorView> outputs;
      for (GuardedTensor& tensor : over.inputs) inputs.push_back(tensor.view());
      for (GuardedTensor& tensor : over.outputs) outputs.push_back(tensor.view());
      outputs[output].data = inputs[input].data;
      ASSERT_TRUE(run(op(), inputs, outputs, over.attributes, execution).ok());
      EXPECT_TRUE(std::ranges::equal(apart.outputs[output].data(), over.inputs[input].data()));
    }
  }
}

/// The row is longer than the buffer of softmax. float16 is computed in float32 and rounded once.
TEST(Softmax, LongFloat16RowsEqualRoundedFloat32Rows) {
  const auto softmax = std::ranges::find(op_table(), std::string_view("softmax"), &Op::name);
  const std::array<std::int64_t, 2> shape{2, 20001};
  std::vector<Half> halves(2 * 20001);
  std::vector<float> floats;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = store<Half>(static_cast<float>(i * 7919 % 1000) / 64);
    floats.push_back(load(halves[i]));
  }
  SerialExecution execution(0);
  for (const auto& [data, dtype] : {std::pair<void*, DType>(halves.data(), DType::float16),
                                    std::pair<void*, DType>(floats.data(), DType::float32)}) {
    const TensorView row{data, dtype, shape};
    ASSERT_TRUE(run(*softmax, {&row, 1}, {&row, 1}, {}, execution).ok());
  }
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(halves[i].bits, store<Half>(floats[i]).bits) << i;
  }
}

/// Without products, the epilogue is computed of the bias. float16 is computed in float32 and
/// rounded once.
template <class T>
void expect_activation_of_the_bias(Activation activation) {
  constexpr std::int64_t n = 203;  // not a multiple of the vector size
  GuardedTensor bias(dtype_of<T>, {n}, 0);
  GuardedTensor sum(dtype_of<T>, {n}, 1);
  GuardedTensor d(dtype_of<T>, {n}, 1);
  auto* const numbers = static_cast<T*>(bias.view().data);
  for (std::int64_t i = 0; i < n; ++i) {
    numbers[i] = store<T>(static_cast<Compute<T>>(i - n / 2) / 16);
  }
  Gemm gemm{dtype_of<T>, 1, 1, n, 0, nullptr, nullptr, d.view().data};
  gemm.bias = numbers;
  gemm.activation = activation;
  gemm.sum = sum.view().data;
  SerialExecution execution(0);
  ASSERT_TRUE(cpu::fused_gemm({"relu", {}, {}, {}, execution}, gemm).ok());
  EXPECT_TRUE(d.intact() && sum.intact());
  EXPECT_TRUE(std::ranges::equal(sum.data(), bias.data()));
  const double epsilon = std::is_same_v<T, double>  ? 0x1p-51
                         : std::is_same_v<T, float> ? 0x1p-22
                         : std::is_same_v<T, Half>  ? 0x1p-10
                                                    : 0x1p-7;
  for (std::int64_t i = 0; i < n; ++i) {
    const Compute<T> x = load(numbers[i]);
    const Compute<T> actual = load(static_cast<const T*>(d.view().data)[i]);
    const double expected = activated(static_cast<double>(x), activation);
    ASSERT_NEAR(actual, expected, epsilon * std::max(std::abs(expected), 0.25)) << x;
    visit_activation(activation, [&](auto constant) {
      ASSERT_EQ(actual, load(store<T>(cudarelu::activated<constant.value>(x)))) << x;
    });
  }
}

struct Wave {
  static constexpr OpSpec spec{
      .signature = "wave(x: T[*, c], phase: T[c], *, rate: float) -> y: T[*, c]",
      .summary = "sin(rate x) cos(phase).",
      .dtypes = floating_types,
      .definition = ""};
  template <class T, class Angles = math::AnyAngles>
  T operator()(T x, T phase, T rate, Angles&& angles = {}) const {
    return math::sin(rate * x, angles) * math::cos(phase, angles);
  }
};

/// The results, where the output is apart from the inputs or is the first of them.
template <class T>
std::vector<T> waves(std::vector<T> x, std::vector<T> phase, bool in_place) {
  std::vector<T> y(x.size());
  const std::array<std::int64_t, 2> shape{std::ssize(x) / std::ssize(phase), std::ssize(phase)};
  const std::array inputs{TensorView{x.data(), dtype_of<T>, shape},
                          TensorView{phase.data(), dtype_of<T>, {&shape[1], 1}}};
  const TensorView output{in_place ? x.data() : y.data(), dtype_of<T>, shape};
  const std::array<Attribute, 1> attributes{0.5};
  SerialExecution execution(0);
  const Call call{"wave", inputs, {&output, 1}, attributes, execution};
  EXPECT_TRUE(elementwise_cpu<Wave>(call).ok());
  return in_place ? x : y;
}

template <class T>
void expect_waves_of_each_element() {
  std::vector<T> x;
  std::vector<T> phase;
  for (int i = 0; i < 700; ++i) phase.push_back(store<T>(0.37f * static_cast<float>(i)));
  for (int i = 0; i < 2100; ++i) x.push_back(store<T>(0.61f * static_cast<float>(i - 1000)));
  const std::vector<T> small = waves(x, phase, false);
  x[800] = store<T>(0x1p15f);  // an angle of 2^14
  const std::vector<T> still_small = waves(x, phase, false);
  x[800] = store<T>(60000.0f);
  const std::vector<T> large = waves(x, phase, false);
  const std::vector<T> in_place = waves(x, phase, true);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto angle = 0.5f * load(x[i]);
    const float expected = math::sin(angle) * math::cos(load(phase[i % phase.size()]));
    ASSERT_EQ(load(large[i]), load(store<T>(expected))) << i;
    ASSERT_EQ(load(in_place[i]), load(large[i])) << i;
    if (i == 800) continue;
    ASSERT_EQ(load(small[i]), load(large[i])) << i;  // whatever its neighbours are
    ASSERT_EQ(load(small[i]), load(still_small[i])) << i;
  }
}

TEST(Elementwise, AnElementHasTheSameResultBesideLargeAngles) {
  expect_waves_of_each_element<float>();
  expect_waves_of_each_element<BFloat16>();
}

TEST(Product, AppliesEachActivation) {
  for (const Activation activation : activations) {
    SCOPED_TRACE(static_cast<int>(activation));
    expect_activation_of_the_bias<float>(activation);
    expect_activation_of_the_bias<double>(activation);
    expect_activation_of_the_bias<Half>(activation);
    expect_activation_of_the_bias<BFloat16>(activation);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, EveryOp, ::testing::Range(std::size_t{0}, op_table().size()),
                         [](const auto& info) { return std::string(op_table()[info.param].name); });

}  // namespace
}  // namespace cudarelu::testing

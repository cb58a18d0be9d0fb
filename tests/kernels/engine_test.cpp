// Tests of every op on the CPU: writes stay within the outputs, and results do not depend on the
// division into parts.
#include <gtest/gtest.h>

#include "arguments.h"

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

INSTANTIATE_TEST_SUITE_P(Engine, EveryOp, ::testing::Range(std::size_t{0}, op_table().size()),
                         [](const auto& info) { return std::string(op_table()[info.param].name); });

}  // namespace
}  // namespace cudarelu::testing

#include "cudarelu/signature.h"

#include <gtest/gtest.h>

namespace cudarelu {
namespace {

TEST(Signature, InputsAttributesAndOutputs) {
  const Signature s = parse_signature(
      "bias_relu(x: T[*, c], bias: T[c], *, scale: float = 1.5, n: int) -> y: T[*, c]");
  EXPECT_EQ(s.name, "bias_relu");
  ASSERT_EQ(s.inputs.size(), 2u);
  EXPECT_EQ(s.inputs[0].name, "x");
  EXPECT_TRUE(s.inputs[0].leading);
  EXPECT_EQ(s.inputs[0].dims[0].name, "c");
  EXPECT_FALSE(s.inputs[1].leading);
  EXPECT_FALSE(s.inputs[1].optional);
  ASSERT_EQ(s.attributes.size(), 2u);
  EXPECT_EQ(s.attributes[0].name, "scale");
  EXPECT_FALSE(s.attributes[0].integer);
  EXPECT_FALSE(s.attributes[0].required);
  EXPECT_EQ(s.attributes[0].default_value, 1.5);
  EXPECT_TRUE(s.attributes[1].integer);
  EXPECT_TRUE(s.attributes[1].required);
  ASSERT_EQ(s.outputs.size(), 1u);
  EXPECT_EQ(s.outputs[0].name, "y");
}

TEST(Signature, OptionalInputsOffsetsRangesAndSeveralOutputs) {
  const Signature s = parse_signature(
      "f(xyz: T[n, 3], offset: offsets(n)[b], other: T[m, 3]? = xyz, w: i64[b]?, *, "
      "k: int = 16 in [1, 1024]) -> (idx: i32[m, k], distance: T[m, k, 2])");
  EXPECT_EQ(s.inputs[0].dims[1].size, 3);
  EXPECT_EQ(s.inputs[1].kind, ElementKind::offsets);
  EXPECT_EQ(s.inputs[1].offsets_into, "n");
  EXPECT_EQ(s.inputs[1].dtype(DType::float16), DType::int32);
  EXPECT_TRUE(s.inputs[2].optional);
  EXPECT_EQ(s.inputs[2].stand_in(), 0);
  EXPECT_TRUE(s.inputs[3].optional);
  EXPECT_EQ(s.inputs[3].stand_in(), -1);
  EXPECT_EQ(s.inputs[3].dtype(DType::float16), DType::int64);
  EXPECT_EQ(s.attributes[0].lowest, 1);
  EXPECT_EQ(s.attributes[0].highest, 1024);
  ASSERT_EQ(s.outputs.size(), 2u);
  EXPECT_EQ(s.outputs[0].dtype(DType::float16), DType::int32);
  EXPECT_EQ(s.outputs[1].dims.size(), 3u);
}

TEST(Signature, EnumerationsAreIntegersWithLabels) {
  const Signature s =
      parse_signature("f(x: T[*], *, approximate: none | tanh = tanh, mode: a | b | c) -> y: T[*]");
  ASSERT_EQ(s.attributes.size(), 2u);
  EXPECT_TRUE(s.attributes[0].integer);
  ASSERT_EQ(s.attributes[0].labels.size(), 2u);
  EXPECT_EQ(s.attributes[0].labels[1], "tanh");
  EXPECT_FALSE(s.attributes[0].required);
  EXPECT_EQ(s.attributes[0].default_value, 1);
  EXPECT_EQ(s.attributes[0].highest, 1);
  EXPECT_TRUE(s.attributes[1].required);
  EXPECT_EQ(s.attributes[1].lowest, 0);
  EXPECT_EQ(s.attributes[1].highest, 2);
}

TEST(Signature, NumbersAreTheNearestDoubles) {
  const auto value = [](const char* number) {
    static std::string text;
    text = std::string("f(x: T[*], *, a: float = ") + number + ") -> y: T[*]";
    return parse_signature(text).attributes[0].default_value;
  };
  EXPECT_EQ(value("0.01"), 0.01);
  EXPECT_EQ(value("-2"), -2.0);
  EXPECT_EQ(value("1e-5"), 1e-5);
  EXPECT_EQ(value("0.044715"), 0.044715);
  EXPECT_EQ(value("-inf"), -std::numeric_limits<double>::infinity());
}

TEST(Signature, IsUniformWhereAllTensorsHaveOneShape) {
  EXPECT_TRUE(parse_signature("f(x: T[*]) -> y: T[*]").uniform());
  EXPECT_TRUE(
      parse_signature("f(x: T[*], w: T[*], *, a: int = 1) -> (y: T[*], z: T[*])").uniform());
  for (const char* other :
       {"f() -> y: T[*]", "f(x: T[*], w: T[*]?) -> y: T[*]", "f(x: T[*], w: i32[*]) -> y: T[*]",
        "f(x: T[*], w: T[c]) -> y: T[*]", "f(x: T[*, c]) -> y: T[*, c]", "f(x: T[3]) -> y: T[3]",
        "f(x: T[*]) -> y: i64[*]", "f(x: T[*]) -> y: T[*, 2]"}) {
    EXPECT_FALSE(parse_signature(other).uniform()) << other;
  }
}

class Malformed : public testing::TestWithParam<const char*> {};
TEST_P(Malformed, IsRefused) { EXPECT_THROW(parse_signature(GetParam()), std::invalid_argument); }
INSTANTIATE_TEST_SUITE_P(
    Signature, Malformed,
    testing::Values("", "f", "f(x: T[*]", "f(x T[*]) -> y: T[*]", "f(x: float[*]) -> y: T[*]",
                    "f(x: T[*]) -> y: T[*] and", "f(x: T[*]) -> ()",
                    "f(x: T[*], *, a: str) -> y: T[*]", "f(x: T[*], *, a: int = ) -> y: T[*]",
                    "f(x: T[*], *, a: int = 1 in [1]) -> y: T[*]",
                    "f(x: T[*], *, a: b | c = d) -> y: T[*]", "f(x: T[*], *, a: b | ) -> y: T[*]",
                    "f(x: T[*], *, k: b | c) -> y: T[*, k]", "f(x: T[*, c]? = w) -> y: T[*, c]",
                    "f(x: T[*, c]) -> y: T[*, d]", "f(x: T[n], o: offsets(k)[b]) -> y: T[n]",
                    "f(x: T[n], *, k: float = 1.0) -> y: T[n, k]",
                    "f(x: T[a, b, c, d, e, f, g, h, i]) -> y: T[a]"));

}  // namespace
}  // namespace cudarelu

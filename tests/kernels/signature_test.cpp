#include "cudarelu/detail/signature.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cudarelu {
namespace {

TEST(Signature, InputsAttributesAndOutputs) {
  const Signature s = parse_signature(
      "bias_relu(x: T[*, c], bias: T[c], *, scale: float = 1.5, n: int) -> y: T[*, c]");
  EXPECT_EQ(s.name, "bias_relu");
  ASSERT_EQ(s.inputs.size(), 2u);
  EXPECT_EQ(s.inputs[0].name, "x");
  EXPECT_TRUE(s.inputs[0].leading());
  EXPECT_EQ(s.inputs[0].dims[0].name, "c");
  EXPECT_FALSE(s.inputs[1].leading());
  EXPECT_FALSE(s.inputs[1].optional);
  ASSERT_EQ(s.attributes.size(), 2u);
  EXPECT_EQ(s.attributes[0].name, "scale");
  EXPECT_EQ(s.attributes[0].type, AttributeType::real);
  EXPECT_FALSE(s.attributes[0].required);
  EXPECT_EQ(s.attributes[0].default_value, 1.5);
  EXPECT_EQ(s.attributes[1].type, AttributeType::integer);
  EXPECT_TRUE(s.attributes[1].required);
  ASSERT_EQ(s.outputs.size(), 1u);
  EXPECT_EQ(s.outputs[0].name, "y");
}

TEST(Signature, AnySizesAtAnyPlace) {
  const Signature s =
      parse_signature("f(x: T[n, c, *], w: T[*, 2*c], b: T[c]) -> (y: T[n, *, c], z: T[*])");
  EXPECT_EQ(s.inputs[0].star, 2);
  EXPECT_EQ(s.inputs[0].dims.size(), 2u);
  EXPECT_EQ(s.inputs[0].axis_of(1, 5), 1u);
  EXPECT_FALSE(s.inputs[0].may_be_strided());
  EXPECT_EQ(s.inputs[1].star, 0);
  EXPECT_EQ(s.inputs[1].axis_of(0, 5), 4u);
  EXPECT_EQ(s.inputs[2].star, -1);
  EXPECT_EQ(s.outputs[0].star, 1);
  EXPECT_EQ(s.outputs[0].axis_of(1, 3), 2u);
  EXPECT_FALSE(s.outputs[0].is_like(s.inputs[0]));
  EXPECT_FALSE(s.uniform());
  EXPECT_FALSE(parse_signature("f(x: T[n, *]) -> y: T[n, *]").uniform());
}

TEST(Signature, DimensionsThatAttributesPlace) {
  const Signature s = parse_signature(
      "f(x: T[n, *, 2*d @ axis], w: T[d], *, axis: int = -1) -> (y: T[*], z: T[*, d @ axis])");
  EXPECT_EQ(s.inputs[0].axis, "axis");
  EXPECT_EQ(s.inputs[0].star, 1);
  EXPECT_EQ(s.inputs[0].dims[1].name, "2*d");
  EXPECT_EQ(s.inputs[1].axis, "");
  EXPECT_EQ(s.outputs[0].axis, "");
  EXPECT_EQ(s.outputs[1].axis, "axis");
  EXPECT_FALSE(s.outputs[1].may_be_strided());
  const Signature rows =
      parse_signature("f(x: T[*, c @ axis], w: T[c], *, axis: int) -> y: T[*, c @ axis]");
  EXPECT_TRUE(rows.inputs[0].is_like(rows.outputs[0]));
  EXPECT_FALSE(rows.is_elementwise());  // w is no row
}

TEST(Signature, OptionalInputsOffsetsRangesAndSeveralOutputs) {
  const Signature s = parse_signature(
      "f(xyz: T[n, 3], offset: offsets(n)[b], other: T[m, 3]? = xyz, w: i64[b]?, *, "
      "k: int = 16 in [1, 1024]) -> (idx: i32[m, k], distance: T[m, k, 2])");
  EXPECT_EQ(s.inputs[0].dims[1].size, 3);
  EXPECT_TRUE(s.inputs[1].type.is_offsets());
  EXPECT_EQ(s.inputs[1].offsets_into, "n");
  EXPECT_EQ(s.inputs[1].dtype({DType::float16}), DType::int32);
  EXPECT_TRUE(s.inputs[2].optional);
  EXPECT_EQ(s.inputs[2].default_input(), 0);
  EXPECT_TRUE(s.inputs[3].optional);
  EXPECT_EQ(s.inputs[3].default_input(), -1);
  EXPECT_EQ(s.inputs[3].dtype({DType::float16}), DType::int64);
  EXPECT_EQ(s.attributes[0].lowest, 1);
  EXPECT_EQ(s.attributes[0].highest, 1024);
  ASSERT_EQ(s.outputs.size(), 2u);
  EXPECT_EQ(s.outputs[0].dtype({DType::float16}), DType::int32);
  EXPECT_EQ(s.outputs[1].dims.size(), 3u);
}

TEST(Signature, DtypesBesideT) {
  const Signature s = parse_signature(
      "f(x: T[n], a: i8[n], g: V[n], w: T | f32[n], u: f16 | bf16[n], *, to: f16 | bf16 = bf16) -> "
      "(y: x, z: V[n], u_too: u, v: to[n], s: u8[n]) where U: i32 | i64, V: T | f32");
  const VariableDTypes variables{DType::float64, DType::int32, DType::float32};
  EXPECT_EQ(s.inputs[1].dtype(variables), DType::int8);
  EXPECT_EQ(s.inputs[2].dtype(variables), DType::float32);
  EXPECT_TRUE(s.inputs[3].type.is_union());
  EXPECT_TRUE(s.inputs[4].type.is_union());
  ASSERT_EQ(s.variables.size(), 2u);
  EXPECT_FALSE(s.variables[0].or_t);
  EXPECT_TRUE(s.variables[1].or_t);
  EXPECT_TRUE(s.outputs[0].is_like(s.inputs[0]));
  EXPECT_EQ(s.outputs[2].type.kind, ElementType::Kind::input);
  EXPECT_EQ(s.outputs[2].dims.size(), 1u);
  EXPECT_EQ(s.outputs[3].type.kind, ElementType::Kind::attribute);
  EXPECT_EQ(s.attributes[0].dtype_at(1), DType::bfloat16);
  EXPECT_FALSE(s.may_have_gradient(s.inputs[1]));
  EXPECT_TRUE(s.may_have_gradient(s.inputs[4]));
}

TEST(Signature, EnumerationsAreIntegersWithLabels) {
  const Signature s =
      parse_signature("f(x: T[*], *, approximate: none | tanh = tanh, mode: a | b | c) -> y: T[*]");
  ASSERT_EQ(s.attributes.size(), 2u);
  EXPECT_EQ(s.attributes[0].type, AttributeType::label);
  ASSERT_EQ(s.attributes[0].labels.size(), 2u);
  EXPECT_EQ(s.attributes[0].labels[1], "tanh");
  EXPECT_FALSE(s.attributes[0].required);
  EXPECT_EQ(s.attributes[0].default_value, 1);
  EXPECT_EQ(s.attributes[0].highest, 1);
  EXPECT_TRUE(s.attributes[1].required);
  EXPECT_EQ(s.attributes[1].lowest, 0);
  EXPECT_EQ(s.attributes[1].highest, 2);
}

TEST(Signature, ANumberMayTakeThePlaceOfDimensionsOfSeveralInputs) {
  const Signature s = parse_signature(
      "f(x: T[*, h, s, d], k: T[*, h, t, d], p: T[*, h, s, t]? = 0) -> y: T[*, h, s, t]");
  EXPECT_EQ(s.inputs[2].absent, Absent::number);
}

TEST(Signature, BooleansAndNumbersThatMayBeNone) {
  const Signature s = parse_signature(
      "f(x: T[*], *, flag: bool = true, other: bool, scale: float?) -> (y: T[*], z: f32[*])");
  EXPECT_EQ(s.attributes[0].type, AttributeType::boolean);
  EXPECT_EQ(s.attributes[0].default_value, 1);
  EXPECT_TRUE(s.attributes[1].required);
  EXPECT_TRUE(s.attributes[2].optional);
  EXPECT_FALSE(s.attributes[2].required);
  EXPECT_EQ(s.outputs[1].dtype({DType::float16}), DType::float32);
  for (const char* wrong :
       {"f(x: T[*], *, a: bool = 1) -> y: T[*]", "f(x: T[*], *, a: int?) -> y: T[*]"}) {
    EXPECT_THROW(parse_signature(wrong), std::invalid_argument) << wrong;
  }
}

TEST(Signature, SizesThatBroadcastAndDivide) {
  const Signature s = parse_signature(
      "f(q: T[*, h, s], k: T[*, g divides h, s], mask: broadcast T | bool[*, h, s]? = 0) "
      "-> y: T[*, h, s]");
  EXPECT_EQ(s.inputs[2].type.dtypes, DTypeSet::of({DType::boolean}));
  EXPECT_TRUE(s.inputs[2].broadcasts);
  EXPECT_EQ(s.inputs[2].absent, Absent::number);
  ASSERT_EQ(s.divisibilities.size(), 1u);
  EXPECT_EQ(s.divisibilities[0].divisor, "g");
  EXPECT_EQ(s.divisibilities[0].multiple, "h");
  for (const char* wrong :
       {"f(x: T[c], m: broadcast T[d]) -> y: T[c]", "f(x: T[c], m: broadcast T[*, c]) -> y: T[c]",
        "f(x: T[c divides n]) -> y: T[c]", "f(x: T[c]) -> y: broadcast T[c]",
        "f(x: T[c]) -> y: T | bool[c]", "f(m: broadcast T[c]) -> y: T[c]"}) {
    EXPECT_THROW(parse_signature(wrong), std::invalid_argument) << wrong;
  }
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
  EXPECT_EQ(value("1e99999999999"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(value("1e-99999999999"), 0);
}

TEST(Signature, ANumberOfTooManyDigitsIsRejected) {
  const std::string digits(400, '9');
  const std::string text = "f(x: T[n], *, k: float = " + digits + "." + digits + ") -> y: T[n]";
  EXPECT_THROW(parse_signature(text), std::invalid_argument);
}

TEST(Signature, IsUniformIfAllTensorsHaveTheSameShape) {
  EXPECT_TRUE(parse_signature("f(x: T[*]) -> y: T[*]").uniform());
  EXPECT_TRUE(
      parse_signature("f(x: T[*], w: T[*], *, a: int = 1) -> (y: T[*], z: T[*])").uniform());
  for (const char* other :
       {"f(x: T[*], w: T[*]?) -> y: T[*]", "f(x: T[*], w: i32[*]) -> y: T[*]",
        "f(x: T[*], w: T[c]) -> y: T[*]", "f(x: T[*, c]) -> y: T[*, c]", "f(x: T[3]) -> y: T[3]",
        "f(x: T[*]) -> y: i64[*]", "f(x: T[*]) -> y: T[*, 2]"}) {
    EXPECT_FALSE(parse_signature(other).uniform()) << other;
  }
}

TEST(Signature, IsPointwiseIfTheElementwiseEngineCanRunIt) {
  for (const char* each :
       {"f(x: T[*], w: T[*]) -> y: T[*]", "f(x: T[*, c], w: T[c]) -> y: T[*, c]",
        "f(w: T[c], x: T[*, 2, c]) -> y: T[*, 2, c]", "f(x: T[n, 3], w: T[n, 3]) -> y: T[n, 3]",
        "f(x: T[*], w: T[*]? = x) -> y: T[*]"}) {
    EXPECT_TRUE(parse_signature(each).is_elementwise()) << each;
  }
  for (const char* other :
       {"f(x: T[*], w: T[*]?) -> y: T[*]", "f(x: T[*], w: T[c]) -> y: T[*]",
        "f(x: T[n, c], w: T[c]) -> y: T[n, c]", "f(x: T[*, c], w: T[n, c]) -> y: T[*, c]",
        "f(x: T[*, c], w: T[d]) -> y: T[*, c]", "f(x: T[a], w: T[b]) -> y: T[a]",
        "f(x: T[*], w: i32[*]) -> y: T[*]", "f(x: T[*]) -> y: i32[*]", "f(x: T[*, c]) -> y: T[*]",
        "f(x: T[*]) -> (y: T[*], z: T[*])"}) {
    EXPECT_FALSE(parse_signature(other).is_elementwise()) << other;
  }
}

TEST(Signature, AnOutputOverwritesAnInputOfItsDtypeAndShape) {
  const Signature s = parse_signature(
      "f(a: T[*, c], b: T[*, c], i: i32[*, c], r: T[c], o: T[*, c]? = a) -> "
      "(x: T[c], y: T[*, c])");
  EXPECT_EQ(parse_in_place(s, "y = b").output, 1);
  EXPECT_EQ(parse_in_place(s, "y = b").input, 1);
  EXPECT_EQ(parse_in_place(s, "x = r").input, 3);
  for (const char* text :
       {"y", "y=b", "y = ", "z = b", "y = z", "y = i", "y = r", "x = a", "y = o"}) {
    EXPECT_THROW(parse_in_place(s, text), std::invalid_argument) << text;
  }
}

TEST(Signature, SizesThatAreComputed) {
  const Signature s = parse_signature(
      "f(x: T[*, 2*d], w: T[k], *, p: int = 0) -> y: T[*, (d + 2*p - k)//3 + 1, max(d, k)]");
  EXPECT_EQ(s.inputs[0].dims[0].name, "2*d");
  EXPECT_TRUE(s.inputs[0].dims[0].is_expression());
  ASSERT_EQ(s.equations.size(), 1u);
  EXPECT_EQ(s.equations[0].unknown, "d");
  EXPECT_EQ(s.outputs[0].dims[0].terms, 11);
  const std::string deep = std::string(17, '(') + "n" + std::string(17, ')');
  EXPECT_THROW(parse_signature("f(x: T[n]) -> y: T[" + deep + "]"), std::invalid_argument);
  // In other order, since the size that stands alone is known first.
  const Signature other = parse_signature("f(x: T[g*d], y: T[d], z: T[g*d]) -> w: T[g]");
  ASSERT_EQ(other.equations.size(), 2u);
  EXPECT_EQ(other.equations[0].unknown, "g");
  EXPECT_EQ(other.equations[1].unknown, "");
}

class Malformed : public testing::TestWithParam<const char*> {};
TEST_P(Malformed, IsRejected) { EXPECT_THROW(parse_signature(GetParam()), std::invalid_argument); }
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

/// Signatures of which no call could run, and a part of the error message.
class Impossible : public testing::TestWithParam<std::pair<const char*, const char*>> {};
TEST_P(Impossible, IsRejectedWithAMessage) {
  const auto [text, sentence] = GetParam();
  try {
    parse_signature(text);
    FAIL() << text << " is accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_PRED_FORMAT2(testing::IsSubstring, std::string("signature: ") + sentence, error.what());
  }
}
INSTANTIATE_TEST_SUITE_P(
    Absence, Impossible,
    testing::ValuesIn(std::vector<std::pair<const char*, const char*>>{
        {"f(x: T[n], o: offsets(n)[b]?) -> y: T[n]",
         "o is optional: its default must be other offsets"},
        {"f(x: T[n], o: offsets(n)[b]? = 1) -> y: T[n]",
         "o is optional: its default must be other offsets"},
        {"f(x: T[n], d: T[n]? > 0) -> y: T[n]",
         "d is optional: its default must be an input or a number"},
        {"f(x: T[n], d: T[n]? > 0 = 0) -> y: T[n]",
         "d is optional: its default must be an input or a number"},
        {"f(x: T[n, d], e: T[d]? > 0 = max(x)) -> y: T[n]",
         "e is optional: its default must be an input or"},
        {"f(x: T[n], o: T[n]?, p: T[n]? = o) -> y: T[n]", "o, the default of p, must be"},
        {"f(x: T[n, d], o: T[n, d]?, p: T[d]? = min(o)) -> y: T[n]", "o, the default of"},
        {"f(x: i32[n], t: T[n], p: T[n]? = x) -> y: T[n]", "x, the default of p, must"},
        {"f(x: T[n, c], p: T[n]? = x) -> y: T[n]", "x, the default of p, must be"},
        {"f(x: T[n, 3], p: T[m, 4]? = x) -> y: T[n]", "x, the default of p, must be"},
        {"f(x: T[*, n], p: T[n]? = x) -> y: T[n]", "x, the default of p, must be"},
        {"f(x: T[n], p: T[n]? = max(x)) -> y: T[n]", "x, the default of p, must be"},
        {"f(x: T[*, n], p: T[*]? = max(x)) -> y: T[*]", "x, the default of p, must be"},
        {"f(x: T[n], p: T[n]? = mean(x)) -> y: T[n]", "the default of p must be an"},
        {"f(x: T[n], p: T[n]? = p) -> y: T[n]", "p, the default of p, must be an input"},
        {"f(x: T[n], p: T[m]? = 1) -> y: T[n]", "p, whose default is a number, must have"},
        {"f(x: T[*], p: T[*]? = 1) -> y: T[*]", "p, whose default is a number, must have"},
        {"f(x: T[n], p: T[*, n]? = 1) -> y: T[n]", "p, whose default is a number, must have"},
        {"f(x: T[n], p: i32[n]? = 0.5) -> y: T[n]", "p must be an integer"},
        {"f() -> y: i32[3]", "there must be an input that is required"},
        {"f(x: T[n]?) -> y: i32[3]", "x, the first input, must be required"},
        {"f(x: T[n], w: T[n]?, z: T[n]) -> y: T[n]", "z, which is required, must come before"},
        {"f(x: i32[n], w: T[n]?) -> y: T[n]", "y is of type T, so an input that is never absent"},
        {"f(x: T[n, *, *]) -> y: T[*]", "a tensor has one *, but x has more"},
        {"f(x: T[*, c, *]) -> y: T[*]", "a tensor has one *, but x has more"},
        {"f(x: T[n, 2 *]) -> y: T[n]", "a name is missing before `]"},
        {"f(x: T[n, c @ axis], *, axis: int) -> y: T[n]",
         "@ axis of x must follow the dimension after *: T[*, c @ axis]"},
        {"f(x: T[c @ axis, *], *, axis: int) -> y: T[*]", "@ axis of x must follow the dimension"},
        {"f(x: T[*, n, c @ axis], *, axis: int) -> y: T[*]", "@ axis of x must follow the dimen"},
        {"f(x: T[*, c @ ], *, axis: int) -> y: T[*]", "a name is missing before `]"},
        {"f(x: T[*, c @ axis]) -> y: T[*]",
         "axis, which places a dimension of x, must be an int attribute"},
        {"f(x: T[*], *, axis: float = 1) -> y: T[*, 1 @ axis]",
         "axis, which places a dimension of y, must be an int attribute"},
        {"f(x: T[*, n @ axis], o: offsets(n)[b], *, axis: int) -> y: T[*]",
         "n, which o divides, must not be a dimension that an attribute places"},
        {"f(x: T[*, c @ axis], w: T[c]? = 1, *, axis: int) -> y: T[*]",
         "w, whose default is a number, must have dimensions of required inputs, which no attri"},
        {"f(x: T[*, c @ a], w: T[*, c @ b]? = x, *, a: int, b: int) -> y: T[*]",
         "x, the default of w, must be required and have its"},
        {"f(x: T[n], o: offsets(n)[b, *]) -> y: T[n]", "o must have one dimension"},
        {"f(x: T[n, *], p: T[*, n]? = x) -> y: T[n]", "x, the default of p, must be required"},
        {"f(x: T[n], p: broadcast T[n, *]) -> y: T[n]", "p, which broadcasts, must have dimens"},
        {"f(x: T[n], w: T[*]?) -> y: T[*]", "y has a *, so an input that is never absent"},
        {"f(x: T[n], w: T[m]?) -> y: T[m]",
         "m, a dimension of y, must be made of dimensions of inputs"},
        {"f(x: T[n]) -> kept: i64[k]",
         "k, a dimension of kept, must be made of dimensions of inputs that are never absent, and "
         "of integer attributes; if it depends on values, return the largest size, and the number"},
        {"f(x: T[*, 2 d]) -> y: T[*, d]",
         "a dimension of x is a name, a number or an expression such as 2*d, not one before `d])"},
        {"f(x: T[a*b]) -> y: T[a]", "the sizes a and b of a*b are both unknown: one of them must"},
        {"f(x: T[d//2]) -> y: T[d]", "d//2 cannot be solved for d, which must be in it once"},
        {"f(x: T[d*d]) -> y: T[d]", "d*d cannot be solved for d"},
        {"f(x: T[8 - d]) -> y: T[d]", "8 - d cannot be solved for d"},
        {"f(x: T[n], w: T[2*d]?) -> y: T[n]",
         "d, in 2*d of w, must be a dimension of an input that is never absent"},
        {"f(x: T[h/2]) -> y: T[h]", "sizes are divided by a//b, rounded down, or cdiv(a, b)"},
        {"f(x: T[n]) -> y: T[half(n)]", "the functions of sizes are cdiv, min, max and numel, not"},
        {"f(x: T[n]) -> y: T[numel(z)]", "numel(z) must be of an input that is never absent"},
        {"f(x: T[n]) -> y: T[n + ]", "a name is missing before `]`"},
        {"f(x: T[n]) -> y: T[(n]", "`)` is missing before `]`"},
        {"f(x: T[n], *, k: float = 1.0) -> y: T[n + k]", "k, an attribute in a size, must be an"},
        {"f(x: T[n], w: T[m]?, o: offsets(m)[b]? = x) -> y: T[n]", "x, the default of"},
        {"f(x: T[n], i: offsets(n)[b], w: T[m]?, o: offsets(m)[b]? = i) -> y: T[n]",
         "m, which o divides, must be a dimension of an input that is never absent"},
        {"f(x: i32[n], p: offsets(k)[b]) -> y: i32[n]", "k, which p divides, must be a dimension"},
        {"f(x: T[n]) -> y: T[n]?", "there is `?` after the outputs"},
        {"f(x: T[n]) -> y: T[n] > 0", "there is `> 0` after the outputs"}}));
INSTANTIATE_TEST_SUITE_P(
    DTypes, Impossible,
    testing::ValuesIn(std::vector<std::pair<const char*, const char*>>{
        {"f(x: i33[n]) -> y: f32[n]", "the dtype of x must be T, a dtype (bool i8 u8 i32 i64 f16"},
        {"f(x: T | U[n]) -> y: f32[n] where U: i8", "x must have one type variable at most"},
        {"f(x: U[n]) -> y: f32[n]", "U, the dtype of x, must be declared at the end of the line"},
        {"f(x: T[n]) -> y: U[n] where U: i8 | f16", "y is of type U, so an input that is never"},
        {"f(x: T[n]) -> y: T[n] where V: i8",
         "the type variables beside T are U, V and W, in this"},
        {"f(x: U[n]) -> y: x where U: i8, V: U", "V may be T or a dtype, not another variable"},
        {"f(x: T[n]) -> y: T | f32[n]", "y, an output, must have one dtype and one shape"},
        {"f(x: T | f32[n]) -> y: T[n]", "y is of type T, so an input that is never absent must"},
        {"f(x: T[n], w: f16 | f32[n]?) -> y: w[n]",
         "w, whose dtype y has, must be an input that is"},
        {"f(x: T[n], w: T[n]?) -> y: w", "w, whose dtype and shape y has, must be required and"},
        {"f(x: T[n], *, to: a | b = a) -> y: to[n]",
         "the labels of to, which chooses the dtype of y, must be dtypes"},
        {"f(x: T[n], *, to: f16 | none = f16) -> y: to[n]",
         "the labels of to must all be dtypes, or none of them"},
        {"f(x: T[n], w: f16[n]? = 1) -> y: T[n]",
         "w, whose default is a number, must be T, f32,"}}));
INSTANTIATE_TEST_SUITE_P(
    Names, Impossible,
    testing::ValuesIn(std::vector<std::pair<const char*, const char*>>{
        {"lambda(x: T[*]) -> y: T[*]", "lambda is a keyword of Python"},
        {"f(in: T[*]) -> y: T[*]", "in is a keyword of Python"},
        {"f(x: T[*], *, from: int = 1) -> y: T[*]", "from is a keyword of Python"},
        {"f(x: T[*]) -> is: T[*]", "is is a keyword of Python"},
        {"f(True: T[*]) -> y: T[*]", "True is a keyword of Python"},
        {"Swish(x: T[*]) -> y: T[*]",
         "a name consists of lower-case letters, digits and _; not Swish (column 1)"},
        {"myOp(x: T[*]) -> y: T[*]",
         "a name consists of lower-case letters, digits and _; not myOp (column 1)"},
        {"f(X: T[*]) -> y: T[*]",
         "a name consists of lower-case letters, digits and _; not X (column 3)"},
        {"f(x: T[N]) -> y: T[N]",
         "a name consists of lower-case letters, digits and _; not N (column 8)"},
        {"f(x: T[*], a: float = 1.0) -> y: T[*]",
         "the dtype of a must be T, a dtype (bool i8 u8 i32 i64 f16 bf16 f32 f64) or offsets(n), "
         "not "
         "float; attributes, which have this type, follow `*, ` (column 21)"},
        {"f(x: T[*])", "`->` is missing at the end"},
        {"f(x: T[*]) ->", "a name is missing at the end"},
        {"f(none: T[*]) -> y: T[*]", "none is a keyword of Python or of gradients"},
        {"f(inf: T[*]) -> y: T[*]", "inf is a keyword of Python or of gradients"},
        {"f(2x: T[*]) -> y: T[*]", "a name must not begin with a digit"},
        {"f(x: T[*], x: T[*]) -> y: T[*]", "two inputs, attributes or outputs have the name x"},
        {"f(x: T[*], *, x: int) -> y: T[*]", "two inputs, attributes or outputs have the name x"},
        {"f(x: T[*], *, a: int, a: int) -> y: T[*]", "two inputs, attributes or outputs have the"},
        {"f(x: T[*]) -> x: T[*]", "two inputs, attributes or outputs have the name x"},
        {"f(x: T[*], *, a: int) -> a: T[*]", "two inputs, attributes or outputs have the name a"},
        {"f(x: T[*]) -> (y: T[*], y: T[*])",
         "two inputs, attributes or outputs have the name y"}}));
INSTANTIATE_TEST_SUITE_P(
    Numbers, Impossible,
    testing::ValuesIn(std::vector<std::pair<const char*, const char*>>{
        {"f(x: T[n], *, k: int = 2) -> y: T[n, k]", "k, a dimension of y, must be an integer with"},
        {"f(x: T[n], *, k: int = 2 in [-1, 9]) -> y: T[n, k]", "k, a dimension of y, must be an"},
        {"f(x: T[n], *, k: int = 2.5) -> y: T[n]", "k must be an integer"},
        {"f(x: T[n], *, k: int = inf) -> y: T[n]", "k must be an integer"},
        {"f(x: T[n], *, k: int = 5 in [1, 4]) -> y: T[n]", "the default of k must be in its range"},
        {"f(x: T[n], *, k: int = 0 in [1, 4]) -> y: T[n]", "the default of k must be in its range"},
        {"f(x: T[n], *, k: int in [4, 1]) -> y: T[n]", "the range of k is empty"},
        {"f(x: T[n], *, k: a | b | a) -> y: T[n]", "the labels of k must differ: a stands twice"},
        {"f(x: T[n], *, k: float = 1.2.3) -> y: T[n]", "`,` is missing before `.3)"},
        {"f(x: T[n], *, k: float = 1e) -> y: T[n]", "an exponent is missing before `)"},
        {"f(x: T[n], *, k: float = 1e1e1) -> y: T[n]", "`,` is missing before `e1)"},
        {"f(x: T[n], *, k: float = 1einf) -> y: T[n]", "an exponent is missing before `inf)"},
        {"f(x: T[2.5]) -> y: T[2]", "a size must be an integer"},
        {"f(x: T[1e30]) -> y: T[2]", "a size must be an integer"},
        {"f(x: T[n], o: offsets(n)[]) -> y: T[n]", "o must have one dimension, as offsets have"},
        {"f(x: T[n], o: offsets(n)[*]) -> y: T[n]", "o must have one dimension, as offsets have"},
        {"f(x: T[n], o: offsets(n)[b, c]) -> y: T[n]", "o must have one dimension"},
        {"f(a: T[n], b: T[n], c: T[n], d: T[n], e: T[n], g: T[n], h: T[n], i: T[n], j: T[n], "
         "k: T[n], l: T[n], m: T[n], o: T[n]) -> y: T[n]",
         "there are more than 12 inputs"},
        {"f(x: T[n], *, a: int, b: int, c: int, d: int, e: int, g: int, h: int, i: int, j: int) "
         "-> y: T[n]",
         "there are more than 8 attributes"},
        {"f(x: T[n]) -> (a: T[n], b: T[n], c: T[n], d: T[n], e: T[n], g: T[n], h: T[n], i: T[n], "
         "j: T[n])",
         "there are more than 8 outputs"}}));

}  // namespace
}  // namespace cudarelu

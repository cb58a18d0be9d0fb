#include "cudarelu/infer.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "arguments.h"

namespace cudarelu::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

struct Argument {
  DType dtype;
  Sizes shape;
  bool present = true;
};

struct Result {
  Status status;
  std::vector<DType> dtypes;
  std::vector<Sizes> shapes;
};

Result infer_op(const Op& op, const std::vector<Argument>& arguments,
                std::vector<Attribute> attributes = {}) {
  for (std::size_t i = attributes.size(); i < op.signature.attributes.size(); ++i) {
    attributes.push_back(default_of(op.signature.attributes[i]));
  }
  std::vector<OutputType<std::int64_t>> outputs(op.signature.outputs.size());
  Result result;
  result.status = infer<std::int64_t, Argument>(op, arguments, attributes, outputs);
  for (const auto& output : outputs) {
    result.dtypes.push_back(output.dtype);
    result.shapes.emplace_back(output.shape.span().begin(), output.shape.span().end());
  }
  return result;
}

Result infer_op(const char* name, const std::vector<Argument>& arguments,
                std::vector<Attribute> attributes = {}) {
  return infer_op(*find_own(name), arguments, std::move(attributes));
}

constexpr DType f32 = DType::float32;
constexpr DType f16 = DType::float16;
constexpr DType i32 = DType::int32;

TEST(Infer, LeadingAndNamedDimensions) {
  const Result result = infer_op("bias_relu", {{f16, {2, 3, 4}}, {f16, {4}}});
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.dtypes[0], f16);
  EXPECT_EQ(result.shapes[0], (Sizes{2, 3, 4}));
  EXPECT_EQ(infer_op("relu", {{f32, {}}}).shapes[0], Sizes{});
}

TEST(Infer, UnknownSizes) {
  const Op& op = *find_own("bias_relu");
  const SymbolicSize unknown;
  SymbolicSize n;
  n.symbol = "n";
  const SymbolicSize four(4);
  const auto infer_shape = [&](const SymbolicSize& channels, const SymbolicSize& bias) {
    const std::vector<SymbolicTensor> inputs{{true, f32, {n, channels}}, {true, f32, {bias}}};
    std::vector<OutputType<SymbolicSize>> outputs(1);
    const std::vector<Attribute> attributes{1.0};
    const Status status = infer(op, std::span(inputs), std::span(attributes), std::span(outputs));
    return status.ok() ? detail::text_of(outputs[0].shape.span()) : status.message();
  };
  EXPECT_EQ(infer_shape(unknown, four), "[n, ?]");
  EXPECT_EQ(infer_shape(four, unknown), "[n, 4]");
  EXPECT_EQ(infer_shape(four, SymbolicSize(3)), "bias_relu: dimension c is 4 in x but 3 in bias");
}

std::string text_of_result(const Result& result) {
  return result.status.ok() ? detail::text_of(std::span<const std::int64_t>(result.shapes[0]))
                            : std::string(result.status.message());
}

TEST(Infer, SizesThatAreComputed) {
  Op op;
  op.name = "f";
  op.signature = parse_signature("f(x: T[*, 2*d + 1], w: T[d]?) -> y: T[*, d, numel(x)]");
  op.spec.dtypes = DTypeSet::of({f32});
  const auto infer_two = [&](const Sizes& x, const Sizes& w) {
    return text_of_result(infer_op(op, {{f32, x}, {f32, w, !w.empty()}}));
  };
  EXPECT_EQ(infer_two({3, 9}, {}), "[3, 4, 27]");
  EXPECT_EQ(infer_two({3, 9}, {4}), "[3, 4, 27]");
  EXPECT_EQ(infer_two({3, 9}, {5}), "f: dimension 2*d + 1 of x is 9, but must be 11: d is 5");
  EXPECT_EQ(infer_two({3, 8}, {}),
            "f: dimension 2*d + 1 of x is 8, but 8 - 1 must be a multiple of 2");
  EXPECT_EQ(infer_two({3, 0}, {}),
            "f: dimension 2*d + 1 of x is 0, but 0 - 1 must be a multiple of 2");
  op.signature = parse_signature(
      "f(x: T[h, k], w: T[k*s], *, p: int = 0) -> y: T[(h + 2*p - k)//s + 1, cdiv(h, s)]");
  const auto infer_window = [&](const Sizes& x, std::int64_t w, std::int64_t p) {
    return text_of_result(infer_op(op, {{f32, x}, {f32, {w}}}, {p}));
  };
  EXPECT_EQ(infer_window({7, 3}, 6, 1), "[4, 4]");
  EXPECT_EQ(infer_window({7, 3}, 6, -2), "[1, 4]");
  EXPECT_EQ(infer_window({7, 3}, 6, -5),
            "f: dimension (h + 2*p - k)//s + 1 of y would be -2: h is 7, p is -5, k is 3, s is 2");
  EXPECT_EQ(infer_window({7, 3}, 7, 0),
            "f: dimension k*s of w is 7, but must be a multiple of 3: k is 3");
  EXPECT_EQ(
      infer_window({7, 3}, 0, 0),
      "f: dimension (h + 2*p - k)//s + 1 of y divides by less than 1: h is 7, p is 0, k is 3, "
      "s is 0");
  EXPECT_EQ(infer_window({7, 3}, 3, std::numeric_limits<std::int64_t>::max()),
            "f: dimension (h + 2*p - k)//s + 1 of y is too large: h is 7, p is "
            "9223372036854775807, k is 3, s is 1");
}

TEST(Infer, AnySizesAtAnyPlace) {
  Op op;
  op.name = "f";
  op.spec.dtypes = DTypeSet::of({f32});
  op.signature = parse_signature(
      "f(data: T[b, h, w, c], warp: T[b, *, 2], s: broadcast T[b, *, c]?) -> "
      "y: T[b, *, c + 1]");
  const auto resample = [&](const Sizes& data, const Sizes& warp, const Sizes& s = {}) {
    return text_of_result(infer_op(op, {{f32, data}, {f32, warp}, {f32, s}}));
  };
  EXPECT_EQ(resample({5, 6, 7, 3}, {5, 8, 9, 2}), "[5, 8, 9, 4]");
  EXPECT_EQ(resample({5, 6, 7, 3}, {5, 2}), "[5, 4]");
  EXPECT_EQ(resample({5, 6, 7, 3}, {5, 8, 9, 2}, {9, 1}), "[5, 8, 9, 4]");
  EXPECT_EQ(resample({5, 6, 7, 3}, {2}), "f: warp must be [b, *, 2], not [2]");
  EXPECT_EQ(resample({5, 6, 7, 3}, {4, 2}), "f: dimension b is 5 in data but 4 in warp");
  EXPECT_EQ(resample({5, 6, 7, 3}, {5, 8, 3}), "f: warp must be [b, *, 2]: the size 2 is 3");
  EXPECT_EQ(resample({5, 6, 7, 3}, {5, 8, 9, 2}, {8, 1}),
            "f: s is [8, 1], which does not broadcast to [b, *, c], here [5, 8, 9, 3]");
  op.signature = parse_signature("f(x: T[2*d, *], w: T[*, k]) -> y: T[k, *]");
  const auto turned = [&](const Sizes& x, const Sizes& w) {
    return text_of_result(infer_op(op, {{f32, x}, {f32, w}}));
  };
  EXPECT_EQ(turned({6, 4, 5}, {4, 5, 7}), "[7, 4, 5]");
  EXPECT_EQ(turned({6}, {7}), "[7]");
  EXPECT_EQ(turned({5, 4}, {4, 7}), "f: dimension 2*d of x is 5, but must be a multiple of 2");
  EXPECT_EQ(turned({6, 4, 5}, {5, 4, 7}), "f: dimensions * are [4, 5] in x but [5, 4] in w");
}

TEST(Infer, DimensionsThatAttributesPlace) {
  Op op;
  op.name = "f";
  op.spec.dtypes = DTypeSet::of({f32});
  op.signature = parse_signature(
      "f(x: T[n, *, 2*c @ axis], w: T[c]?, v: T[*]?, *, axis: int = -1, to: int = 0) -> "
      "(y: T[*, c @ to], z: T[n, *, 1 @ axis, 3])");
  const auto moved = [&](const Sizes& x, std::int64_t axis, std::int64_t to, const Sizes& w = {},
                         const Sizes& v = {}) {
    const Result result =
        infer_op(op, {{f32, x}, {f32, w, !w.empty()}, {f32, v, !v.empty()}}, {axis, to});
    if (!result.status.ok()) return std::string(result.status.message());
    return detail::text_of(std::span<const std::int64_t>(result.shapes[0])) +
           detail::text_of(std::span<const std::int64_t>(result.shapes[1]));
  };
  EXPECT_EQ(moved({9, 4, 6, 8}, -1, 0), "[4, 4, 6][9, 4, 6, 1, 3]");
  EXPECT_EQ(moved({9, 4, 6, 8}, 0, 2), "[6, 8, 2][9, 1, 6, 8, 3]");
  EXPECT_EQ(moved({9, 4, 6, 8}, 1, -2, {3}, {4, 8}), "[4, 3, 8][9, 4, 1, 8, 3]");
  EXPECT_EQ(moved({9, 4}, 0, -1), "[2][9, 1, 3]");
  EXPECT_EQ(moved({9, 4, 6, 8}, 1, 0, {4}), "f: dimension 2*c of x is 6, but must be 8: c is 4");
  EXPECT_EQ(moved({9, 4, 6, 7}, 2, 0), "f: dimension 2*c of x is 7, but must be a multiple of 2");
  EXPECT_EQ(moved({9, 4, 6, 8}, 1, 0, {}, {4, 6}),
            "f: dimensions * are [4, 8] in x but [4, 6] in v");
  EXPECT_EQ(moved({9, 4, 6, 8}, 3, 0),
            "f: axis is 3, but must be from -3 to 2: it counts 3 dimensions of x, "
            "[n, *, 2*c @ axis]");
  EXPECT_EQ(moved({9, 4}, 0, -2),
            "f: to is -2, but must be from -1 to 0: it counts 1 dimension of y, [*, c @ to]");
  EXPECT_EQ(moved({9}, 0, 0), "f: x must be [n, *, 2*c @ axis], not [9]");
  // Before the run, an attribute may be unknown.
  const std::vector<SymbolicTensor> inputs{
      {true, f32, {SymbolicSize(9), SymbolicSize(4), SymbolicSize(6)}},
      {true, f32, {SymbolicSize(5)}},
      {true, f32, {SymbolicSize(7)}}};
  const std::vector<Attribute> attributes{unknown_integer, unknown_integer};
  std::vector<OutputType<SymbolicSize>> outputs(2);
  ASSERT_TRUE(
      infer_tensors<SymbolicSize>(op, std::span(inputs), attributes, std::span(outputs)).ok());
  EXPECT_EQ(detail::text_of(outputs[0].shape.span()), "[?, ?]");
  EXPECT_EQ(detail::text_of(outputs[1].shape.span()), "[9, ?, ?, 3]");
}

TEST(Infer, DtypesBesideT) {
  Op op;
  op.name = "f";
  op.signature = parse_signature(
      "f(x: T[n], i: U[n], w: T | i8[n], v: V[n], *, to: f16 | f64 = f64) -> (y: x, j: U[n], "
      "z: V[n], q: to[n]) where U: i32 | i64, V: T | f32");
  op.spec.dtypes = floating_types;
  const auto infer_dtypes = [&](DType x, DType i, DType w, DType v, std::int64_t to) {
    const Result result = infer_op(op, {{x, {3}}, {i, {3}}, {w, {3}}, {v, {3}}}, {Attribute{to}});
    if (!result.status.ok()) return std::string(result.status.message());
    std::string text;
    for (const DType dtype : result.dtypes) text.append(name_of(dtype)).append(" ");
    return text;
  };
  EXPECT_EQ(infer_dtypes(f16, i32, DType::int8, f32, 1), "float16 int32 float32 float64 ");
  EXPECT_EQ(infer_dtypes(f16, DType::int64, f16, f16, 0), "float16 int64 float16 float16 ");
  EXPECT_EQ(infer_dtypes(f16, f32, f16, f16, 0), "f: i is float32; supported dtypes: int32, int64");
  EXPECT_EQ(infer_dtypes(f16, i32, f32, f16, 0), "f: w is float32 but x is float16");
  EXPECT_EQ(infer_dtypes(f16, i32, f16, DType::float64, 0), "f: v is float64 but x is float16");
  EXPECT_EQ(infer_dtypes(f16, i32, i32, f16, 0).substr(0, 32), "f: w is int32; supported dtypes:");
}

TEST(Infer, SymbolsOfComputedSizesAreTheirTexts) {
  Op op;
  op.name = "f";
  op.signature = parse_signature("f(x: T[2*d, n]) -> y: T[d, n + 1, 3*(n - 2)//d, min(n, 4)]");
  op.spec.dtypes = DTypeSet::of({f32});
  const auto infer_shape = [&](const SymbolicSize& rows, const SymbolicSize& n) {
    const std::vector<SymbolicTensor> inputs{{true, f32, {rows, n}}};
    std::vector<OutputType<SymbolicSize>> outputs(1);
    const Status status =
        infer(op, std::span(inputs), std::span<const Attribute>(), std::span(outputs));
    return status.ok() ? detail::text_of(outputs[0].shape.span()) : status.message();
  };
  SymbolicSize rows;
  rows.symbol = "rows";
  SymbolicSize n;
  n.symbol = "n";
  EXPECT_EQ(infer_shape(rows, n), "[rows // 2, n + 1, (3 * (n - 2)) // (rows // 2), min(n, 4)]");
  EXPECT_EQ(infer_shape(SymbolicSize(6), SymbolicSize(5)), "[3, 6, 3, 4]");
  EXPECT_EQ(infer_shape(SymbolicSize(7), n),
            "f: dimension 2*d of x is 7, but must be a multiple of 2");
  EXPECT_EQ(infer_shape(SymbolicSize(), n), "[?, n + 1, ?, min(n, 4)]");
}

TEST(Infer, DefaultsAsText) {
  const Signature signature = parse_signature(
      "f(x: T[*], *, n: int = 100000, eps: float = 1e-5, low: float = -inf, on: bool = true, "
      "limit: float?, mode: a | b = b) -> y: T[*]");
  std::vector<std::string> texts;
  for (const AttributeSpec& spec : signature.attributes) texts.push_back(default_text_of(spec));
  EXPECT_EQ(texts, (std::vector<std::string>{"100000", "1e-05", "-inf", "1", "nan", "b"}));
}

TEST(Infer, ShapesThatBroadcast) {
  const auto attention = [](const Sizes& k, const Argument& mask) {
    const Sizes v{2, k[1], k[2], 5};
    return infer_op("attention", {{f16, {2, 4, 3, 8}}, {f16, k}, {f16, v}, mask}).status;
  };
  for (const Sizes& shape : {Sizes{}, {1}, {6}, {3, 1}, {4, 3, 6}, {2, 1, 3, 6}, {1, 4, 1, 1}}) {
    EXPECT_TRUE(attention({2, 2, 6, 8}, {f16, shape}).ok());
    EXPECT_TRUE(attention({2, 1, 6, 8}, {DType::boolean, shape}).ok());
  }
  EXPECT_EQ(attention({2, 2, 6, 8}, {f16, {3, 6, 1}}).message(),
            "attention: attn_mask is [3, 6, 1], which does not broadcast to [*, h, s, t], here "
            "[2, 4, 3, 6]");
  EXPECT_FALSE(attention({2, 2, 6, 8}, {f16, {1, 2, 4, 3, 6}}).ok());
  EXPECT_EQ(attention({2, 2, 6, 8}, {f32, {6}}).message(),
            "attention: attn_mask is float32 but q is float16");
  EXPECT_EQ(attention({2, 2, 6, 8}, {i32, {6}}).message(),
            "attention: attn_mask is int32; supported dtypes: float32, float64, float16, bfloat16, "
            "bool");
  EXPECT_EQ(attention({2, 3, 6, 8}, {f16, {6}}).message(),
            "attention: dimension h is 4, which is not a multiple of dimension g, 3");
}

TEST(Infer, OutputSizesFromAttributesAndAbsentInputs) {
  const std::vector<Argument> full{{f32, {9, 3}}, {i32, {2}}, {f32, {5, 3}}, {i32, {2}}};
  Result result = infer_op("knn_query", full, {std::int64_t{7}});
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.shapes, (std::vector<Sizes>{{5, 7}, {5, 7}}));
  EXPECT_EQ(result.dtypes, (std::vector<DType>{i32, f32}));

  result = infer_op("knn_query", {full[0], full[1], {f32, {}, false}, {i32, {}, false}});
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.shapes[0], (Sizes{9, 16}));
}

void expect_error(const Result& result, Status::Code code, const std::string& message) {
  EXPECT_EQ(result.status.code(), code);
  EXPECT_EQ(result.status.message(), message);
}

TEST(Infer, ErrorsNameTheOpTheTensorAndTheSizes) {
  constexpr auto invalid = Status::Code::invalid_argument;
  constexpr auto dtype = Status::Code::unsupported_dtype;
  expect_error(infer_op("bias_relu", {{f32, {2, 3}}, {f32, {4}}}), invalid,
               "bias_relu: dimension c is 3 in x but 4 in bias");
  expect_error(infer_op("bias_relu", {{f32, {2, 3}}, {f32, {1, 3}}}), invalid,
               "bias_relu: bias must be [c], not [1, 3]");
  expect_error(infer_op("softmax", {{f32, {}}}), invalid, "softmax: x must be [*, c], not []");
  expect_error(infer_op("add", {{f32, {2, 3}}, {f32, {2, 1}}}), invalid,
               "add: dimensions * are [2, 3] in a but [2, 1] in b");
  expect_error(
      infer_op("knn_query", {{f32, {9, 2}}, {i32, {1}}, {f32, {}, false}, {i32, {}, false}}),
      invalid, "knn_query: xyz must be [n, 3]: the size 3 is 2");
  expect_error(infer_op("relu", {{f32, {}, false}}), invalid, "relu: x is missing");
  expect_error(infer_op("tanh", {{i32, {2}}}), dtype,
               "tanh: x is int32; supported dtypes: float32, float64, float16, bfloat16");
  expect_error(infer_op("add", {{f32, {2}}, {f16, {2}}}), dtype,
               "add: b is float16 but a is float32");
  expect_error(infer_op("knn_query",
                        {{f32, {9, 3}}, {DType::int64, {1}}, {f32, {}, false}, {i32, {}, false}}),
               dtype, "knn_query: offset must be int32, not int64");
}

TEST(Infer, AttributesHaveTypesAndRanges) {
  constexpr auto invalid = Status::Code::invalid_argument;
  const std::vector<Argument> points{{f32, {9, 3}}, {i32, {1}}, {f32, {}, false}, {i32, {}, false}};
  for (const std::int64_t nsample : {0, -1, 1025, 1234567}) {
    expect_error(infer_op("knn_query", points, {nsample}), invalid,
                 "knn_query: nsample must be in [1, 1024], not " + std::to_string(nsample));
  }
  EXPECT_TRUE(infer_op("knn_query", points, {std::int64_t{1024}}).status.ok());
  expect_error(infer_op("knn_query", points, {3.0}), invalid,
               "knn_query: nsample must be an integer");
  expect_error(infer_op("leaky_relu", {{f32, {2}}}, {std::int64_t{1}}), invalid,
               "leaky_relu: negative_slope must be a floating-point number");
}

TEST(Infer, SizesBeyondInt32Offsets) {
  const std::int64_t large = std::int64_t{1} << 31;
  expect_error(
      infer_op("knn_query", {{f32, {large, 3}}, {i32, {1}}, {f32, {}, false}, {i32, {}, false}}),
      Status::Code::invalid_argument,
      "knn_query: dimension n is 2147483648, but offset is int32: at most 2147483647 is supported");
  EXPECT_TRUE(infer_op("relu", {{f32, {large, 4}}}).status.ok());
}

TEST(Infer, RanksUpToTheLimit) {
  EXPECT_TRUE(infer_op("relu", {{f32, Sizes(max_rank, 1)}}).status.ok());
  expect_error(infer_op("relu", {{f32, Sizes(max_rank + 1, 1)}}), Status::Code::invalid_argument,
               "relu: x has 65 dimensions; at most 64 are supported");
  Op op;
  op.name = "f";
  op.spec.dtypes = floating_types;
  op.signature = parse_signature("f(x: T[*, c]) -> (y: T[*, c], z: T[*, 3, c, 5])");
  EXPECT_EQ(infer_op(op, {{f32, Sizes(max_rank - 2, 1)}}).shapes[1].size(), max_rank);
  expect_error(infer_op(op, {{f32, Sizes(max_rank - 1, 1)}}), Status::Code::invalid_argument,
               "f: z would have 65 dimensions; at most 64 are supported");
  op.signature = parse_signature("f(x: T[*], w: T[c], m: broadcast T[*, c]) -> y: T[*]");
  EXPECT_TRUE(infer_op(op, {{f32, Sizes(max_rank, 1)}, {f32, {3}}, {f32, {3}}}).status.ok());
}

}  // namespace
}  // namespace cudarelu::testing

#include "cudarelu/gradient.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "arguments.h"

namespace cudarelu::testing {
namespace {

using Kind = Expression::Kind;

TEST(Gradient, NestedExpressions) {
  const std::vector<Gradient> gradients = parse_gradient(*find_own("bias_relu"));
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_EQ(gradients[0].input, 0);
  EXPECT_EQ(gradients[1].input, 1);
  const Expression& x = gradients[0].value;
  EXPECT_EQ(x.op->name, "bias_relu_backward");
  EXPECT_EQ(x.arguments[0].kind, Kind::output_gradient);
  EXPECT_EQ(x.arguments[1].kind, Kind::input);
  EXPECT_EQ(x.arguments[3].kind, Kind::attribute);
  // By equal texts an adapter recognizes a shared part, which it computes once.
  EXPECT_EQ(gradients[1].value.arguments[0].text, x.text);
}

TEST(Gradient, NumbersAndOutputs) {
  const std::vector<Gradient> gradients = parse_gradient(*find_own("tanh_backward"));
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_EQ(gradients[1].value.arguments[1].kind, Kind::number);
  EXPECT_EQ(gradients[1].value.arguments[1].number, -2.0);
  EXPECT_EQ(parse_gradient(*find_own("relu"))[0].value.arguments[1].kind, Kind::output);
  EXPECT_TRUE(parse_gradient(*find_own("knn_query")).empty());
}

TEST(Gradient, OmittedInputs) {
  const std::vector<Gradient> gradients = parse_gradient(*find_own("linear_input_backward"));
  ASSERT_EQ(gradients[0].value.op->name, "linear");
  EXPECT_EQ(gradients[0].value.arguments[2].kind, Kind::none);
}

TEST(Gradient, Sums) {
  const Op& op = *find_own("linear_gelu_with_sum");
  const Expression sum = parse_gradient(op)[2].value.arguments[0];
  ASSERT_EQ(sum.kind, Kind::sum);
  ASSERT_EQ(sum.arguments.size(), 2u);
  EXPECT_EQ(sum.arguments[0].kind, Kind::output_gradient);
  EXPECT_EQ(sum.arguments[1].op->name, "gelu_backward");
}

TEST(Gradient, AdviceWithoutOne) {
  Op op = *find_own("relu");
  EXPECT_EQ(advice_without_gradient(op), "");
  op.spec.gradient = "none: ask for it";
  EXPECT_EQ(advice_without_gradient(op), "ask for it");
  EXPECT_TRUE(parse_gradient(op).empty());
}

TEST(Gradient, TrainingForm) {
  EXPECT_EQ(training_form(*find_own("relu")), nullptr);
  EXPECT_EQ(training_form(*find_own("linear_gelu")), find_own("linear_gelu_with_sum"));
  EXPECT_TRUE(parse_gradient(*find_own("linear_gelu")).empty());
  for (const char* form : {"no_such_op", "linear_relu", "gelu", "linear_gelu"}) {
    Op op = *find_own("linear_gelu");
    const std::string gradient = std::string("as ") + form;
    op.spec.gradient = gradient;
    EXPECT_THROW(training_form(op), std::invalid_argument) << form;
  }
}

TEST(Gradient, MalformedExpressionsAreRejected) {
  for (const char* text :
       {"w = grad_y", "x", "x = ", "x = no_such_op(x)", "x = grad_x", "x = relu_backward(grad_y)",
        "x = relu_backward(grad_y, y", "x = grad_y y", "x = grad_y +"}) {
    Op op = *find_own("relu");
    op.spec.gradient = text;
    EXPECT_THROW(parse_gradient(op), std::invalid_argument) << text;
  }
}

TEST(Gradient, DeepExpressionsAreRejected) {
  std::string gradient = "x = ";
  for (int i = 0; i < 1'000'000; ++i) gradient += "scale(";
  Op op = *find_own("relu");
  op.spec.gradient = gradient;
  EXPECT_THROW(parse_gradient(op), std::invalid_argument);
}

TEST(Gradient, ImpossibleExpressionsAreRejectedWithAMessage) {
  struct Case {
    const char* op;
    const char* gradient;
    const char* sentence;
  };
  for (const auto& [name, gradient, sentence] : std::initializer_list<Case>{
           {"relu", "x = mul(grad_y, none)", "passes none for b of mul, which is required"},
           {"relu", "x = mul(grad_y, 2)", "passes 2 for b of mul, which is a tensor"},
           {"scale", "x = mul(grad_y, factor)", "passes factor for b of mul, which is a tensor"},
           {"linear", "weight = linear_weight_backward(grad_y, bias)",
            "passes bias, which may be absent, for x of linear_weight_backward, which is required"},
           {"grid_cluster", "pos = expand_rows(start, pos)",
            "passes start, which may be absent, for row of expand_rows, which is required"},
           {"relu", "x = scale(grad_y, none)",
            "passes none for factor of scale, which is an attribute"},
           {"relu", "x = scale(grad_y, y)", "passes y for factor of scale, which is an attribute"},
           {"relu", "x = scale(grad_y, 2 + 3)", "has a sum of 2, which is not a tensor"},
           {"relu", "x = gelu_backward(grad_y, x, 2)",
            "passes 2 for approximate of gelu_backward, which must be none (0) or tanh (1)"},
           {"relu", "x = gelu_backward(grad_y, x, 0.5)",
            "passes 0.5 for approximate of gelu_backward, which must be none (0) or tanh (1)"},
           {"relu", "x = row_rstd(grad_y, -1)",
            "passes -1 for eps of row_rstd, which must be in [0, inf]"},
           {"scale", "x = gelu_backward(grad_y, x, factor)",
            "passes factor for approximate of gelu_backward, which must be none (0) or tanh (1)"},
           {"gelu", "x = scale(grad_y, approximate)",
            "passes approximate for factor of scale, which must be a floating-point number"},
           {"relu", "x = grad_y + none", "has a sum of none, which is not a tensor"},
           {"relu", "x = none", "of x is none, which is not a tensor"},
           {"scale", "x = factor", "of x is factor, which is not a tensor"},
           {"linear", "bias = bias", "of bias is bias, which may be absent"},
           {"linear", "bias = sum_rows(grad_y) + bias", "has a sum of bias, which may be absent"},
           {"relu", "x = grad_y; x = grad_y", "has x twice"},
           {"knn_query", "xyz = scale(grad_distance, 0) + grad_idx",
            "names grad_idx, but idx holds integers"},
           {"knn_query", "offset = grad_distance", "has offset, which holds integers"},
           {"relu", "y = grad_y", "must be `input = expression`, and y is no input"},
           {"relu", "x = grad_y * 2",
            "has `* 2` after its end; an expression is made of calls of ops, such as scale(x, 2), "
            "and +"},
           {"relu", "x = sum_rows(grad_y)", "of x has the shape [?], but x is [*]"},
           {"layer_norm", "x = sum_rows(grad_y)", "of x has the shape [c], but x is [*, c]"},
           {"bias_relu", "bias = grad_y", "of bias has the shape [*, c], but bias is [c]"},
           {"matmul", "a = matmul(grad_c, b)",
            "passes b, which is [*, k, n], for b of matmul, which does not fit "
            "matmul(a: T[*, m, k], b: T[*, k, n]) -> c: T[*, m, n]"},
           {"matmul", "b = matmul_nt(b, grad_c)",
            "of b has the shape [*, k, m], but b is [*, k, n]"},
           {"matmul", "a = mul(a, b)",
            "passes b, which is [*, k, n], for b of mul, which does not fit "
            "mul(a: T[*], b: T[*]) -> c: T[*]"},
           {"linear", "bias = sum_rows(x)", "of bias has the shape [k], but bias is [n]"},
           {"knn_query", "xyz = mul(new_xyz, new_xyz)",
            "of xyz has the shape [m, 3], but xyz is [n, 3]"}}) {
    Op op = *find_own(name);
    op.spec.gradient = gradient;
    try {
      parse_gradient(op);
      ADD_FAILURE() << gradient << " is accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), std::string(name) + ": the gradient " + sentence);
    }
  }
}

TEST(Gradient, ShapesWithAnySizesAtAnyPlace) {
  Op op = *find_own("mul");
  op.signature = parse_signature("mul(a: T[n, *], b: T[*, n], e: T[n, *, 2]) -> c: T[n, *]");
  const auto error_of = [&](const char* gradient) -> std::string {
    op.spec.gradient = gradient;
    try {
      parse_gradient(op);
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error_of("a = mul(grad_c, a); b = mul(b, b); e = mul(e, e) + e"), "");
  EXPECT_EQ(error_of("b = mul(grad_c, a)"),
            "mul: the gradient of b has the shape [n, *], but b is [*, n]");
  EXPECT_EQ(error_of("a = mul(grad_c, b)"),
            "mul: the gradient passes b, which is [*, n], for b of mul, which does not fit "
            "mul(a: T[*], b: T[*]) -> c: T[*]");
  EXPECT_EQ(error_of("b = sum_rows(a)"),
            "mul: the gradient of b has the shape [?], but b is [*, n]");
  EXPECT_EQ(error_of("e = expand_rows(sum_rows(e), a)"), "");
  EXPECT_EQ(error_of("e = expand_rows(sum_rows(e), b)"),
            "mul: the gradient of e has the shape [*, 2], but e is [n, *, 2]");
}

TEST(Gradient, ShapesThatAttributesPlaceAreCheckedInTheCall) {
  Op op = *find_own("mul");
  op.signature =
      parse_signature("mul(a: T[*, n @ axis], b: T[n], *, axis: int) -> c: T[*, n @ axis]");
  op.spec.gradient = "a = mul(grad_c, a); b = sum_rows(grad_c)";
  EXPECT_EQ(parse_gradient(op).size(), 2u);
  op.spec.gradient = "b = mul(b, grad_c) + mul(b, b)";
  EXPECT_EQ(parse_gradient(op).size(), 1u);
}

TEST(Gradient, AnInputOfFloat32MayHaveOne) {
  Op op = *find_own("attention_backward");
  op.spec.gradient = "lse = lse";
  const auto gradients = parse_gradient(op);
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_EQ(op.signature.inputs[static_cast<std::size_t>(gradients[0].input)].name, "lse");
}

TEST(Gradient, ShapesThatMayBeEqualAreAccepted) {
  struct Case {
    const char* op;
    const char* gradient;
  };
  for (const auto& [name, gradient] :
       std::initializer_list<Case>{{"knn_query", "new_xyz = grad_distance"},  // nsample may be 3
                                   {"relu", "x = matmul(grad_y, y)"},  // * may be two dimensions
                                   {"bias_relu", "bias = sum_rows(grad_y) + bias"},
                                   {"bias_relu", "x = grad_y + bias"},      // a sum broadcasts
                                   {"attention", "attn_mask = grad_y"}}) {  // summed to its shape
    Op op = *find_own(name);
    op.spec.gradient = gradient;
    EXPECT_NO_THROW(parse_gradient(op)) << gradient;
  }
}

TEST(Gradient, OptionalInputsMayBeUsed) {
  // A number replaces an absent weight, and x has its dimension.
  for (const char* gradient : {"x = layer_norm_backward(grad_y, x, weight, eps).grad_x",
                               "x = expand_rows(weight, x)", "x = layer_norm(x, bias, none, 0)"}) {
    Op op = *find_own("layer_norm");
    op.spec.gradient = gradient;
    EXPECT_NO_THROW(parse_gradient(op)) << gradient;
  }
  // xyz replaces an absent new_xyz.
  Op op = *find_own("knn_query");
  op.spec.gradient = "new_xyz = mul(new_xyz, grad_distance)";
  EXPECT_NO_THROW(parse_gradient(op));
}

}  // namespace
}  // namespace cudarelu::testing

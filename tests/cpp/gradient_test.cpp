#include "cudarelu/gradient.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace cudarelu {
namespace {

using Kind = Expression::Kind;

TEST(Gradient, ExpressionsNestAndNameTheirParts) {
  const std::vector<Gradient> gradients = parse_gradient(*find_op("bias_relu"));
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_EQ(gradients[0].input, 0);
  EXPECT_EQ(gradients[1].input, 1);
  const Expression& x = gradients[0].value;
  EXPECT_EQ(x.op->name, "bias_relu_backward");
  EXPECT_EQ(x.arguments[0].kind, Kind::output_gradient);
  EXPECT_EQ(x.arguments[1].kind, Kind::input);
  EXPECT_EQ(x.arguments[3].kind, Kind::attribute);
  // Equal texts: an adapter computes the shared part once.
  EXPECT_EQ(gradients[1].value.arguments[0].text, x.text);
}

TEST(Gradient, NumbersAndOutputs) {
  const std::vector<Gradient> gradients = parse_gradient(*find_op("tanh_backward"));
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_EQ(gradients[1].value.arguments[1].kind, Kind::number);
  EXPECT_EQ(gradients[1].value.arguments[1].number, -2.0);
  EXPECT_EQ(parse_gradient(*find_op("relu"))[0].value.arguments[1].kind, Kind::output);
  EXPECT_TRUE(parse_gradient(*find_op("knn_query")).empty());
}

TEST(Gradient, AnInputMayBeLeftOut) {
  const std::vector<Gradient> gradients = parse_gradient(*find_op("linear_input_backward"));
  ASSERT_EQ(gradients[0].value.op->name, "linear");
  EXPECT_EQ(gradients[0].value.arguments[2].kind, Kind::none);
}

TEST(Gradient, Sums) {
  const Op& op = *find_op("linear_gelu_with_sum");
  const Expression sum = parse_gradient(op)[2].value.arguments[0];
  ASSERT_EQ(sum.kind, Kind::sum);
  ASSERT_EQ(sum.arguments.size(), 2u);
  EXPECT_EQ(sum.arguments[0].kind, Kind::output_gradient);
  EXPECT_EQ(sum.arguments[1].op->name, "gelu_backward");
}

TEST(Gradient, OfAnotherFormOfTheOp) {
  EXPECT_EQ(training_form(*find_op("relu")), nullptr);
  EXPECT_EQ(training_form(*find_op("linear_gelu")), find_op("linear_gelu_with_sum"));
  EXPECT_TRUE(parse_gradient(*find_op("linear_gelu")).empty());
  for (const char* form : {"no_such_op", "linear_relu", "gelu"}) {
    Op op = *find_op("linear_gelu");
    const std::string gradient = std::string("as ") + form;
    op.spec.gradient = gradient;
    EXPECT_THROW(training_form(op), std::invalid_argument) << form;
  }
}

TEST(Gradient, WhatItCannotMeanIsRefused) {
  for (const char* text :
       {"w = grad_y", "x", "x = ", "x = no_such_op(x)", "x = grad_x", "x = relu_backward(grad_y)",
        "x = relu_backward(grad_y, y", "x = grad_y y", "x = grad_y +"}) {
    Op op = *find_op("relu");
    op.spec.gradient = text;
    EXPECT_THROW(parse_gradient(op), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace cudarelu

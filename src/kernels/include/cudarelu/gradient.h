// The gradient of an op: for each differentiable input, an expression over other ops of the table.
//
//   x = relu_backward(grad_y, y)
//   a = scale(grad_c, alpha); b = grad_c
//   x = layer_norm_backward(grad_y, x, none, eps).grad_x
//
// Names are the op's inputs, outputs and attributes, and grad_<output>; a called op takes its
// inputs and then its attributes by position, `none` for an input that is left out. Of a called op
// with several outputs one is named. An input that is not named has no gradient: it is
// zero almost everywhere, or the op is not differentiable in it. An input that may be absent is
// passed where the called op's may be, too; elsewhere only if another input takes its place, or a
// number does and a required input has all its dimensions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cudarelu/op.h"

namespace cudarelu {

struct Expression {
  enum class Kind { input, output, output_gradient, attribute, number, call, sum, none };

  Kind kind{};
  int index = -1;                     // of the input, output or attribute
  double number = 0;                  // of kind number
  const Op* op = nullptr;             // of kind call
  int output = 0;                     // of kind call: which one
  std::vector<Expression> arguments;  // of kind call, or the terms of a sum
  std::string text;                   // as it is written; equal texts have equal values
};

struct Gradient {
  int input = -1;
  Expression value;
};

/// Parses op.spec.gradient, which calls ops of the table; none where that is another op's. Throws
/// std::invalid_argument where it names what there is not, or passes what the called op cannot
/// take.
std::vector<Gradient> parse_gradient(const Op& op, std::span<const Op> table = op_table());

/// The op that is called in the place of `op` where a gradient is wanted; nullptr: itself. Throws
/// std::invalid_argument where that has other inputs or attributes, other outputs first, or no
/// gradient of its own.
const Op* training_form(const Op& op, std::span<const Op> table = op_table());

}  // namespace cudarelu

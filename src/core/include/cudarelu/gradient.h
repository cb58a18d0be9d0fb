// The gradient of an op: for each differentiable input, an expression over other ops.
//
//   x = relu_backward(grad_y, y)
//   a = scale(grad_c, alpha); b = grad_c
//   x = layer_norm_backward(grad_y, x, none, eps).grad_x
//   x = cudarelu::mul(grad_y, cudarelu::relu(x))    ops of another module
//   as linear_gelu_with_sum                         the gradient of that op: see training_form()
//   none: define it with orders=2                   none, and what the error says after that
//
// Names are the op's inputs, outputs and attributes, and grad_<output>. An output of type f32 has a
// gradient only if an expression names it; an input of type f32 may have one. A called op takes its
// inputs and then its attributes by position; `none` is an absent input, and so is the gradient of
// an output that nothing depends on, for an input that is 0 if it is absent. `.name` selects an
// output of a called op that has several. An input without an expression has no gradient: it is
// zero almost everywhere, or the op is not differentiable in it. An input that may be absent can be
// passed for an optional input of the called op. For a required one, it needs a stand-in: another
// input, or a number if a required input has all of its dimensions.
#pragma once

#include <span>
#include <string>
#include <string_view>
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
  std::string text;                   // the source; equal texts have equal values
};

struct Gradient {
  int input = -1;
  Expression value;
};

/// Parses op.spec.gradient, which calls ops of the op's module and of modules that have been added.
/// Returns nothing for an op that has a training_form(), or "none: ...". Throws
/// std::invalid_argument if a name does not exist, an argument does not fit the called op, or the
/// shape of a gradient is not that of its input by the dimensions that the signatures name.
std::vector<Gradient> parse_gradient(const Op& op);

/// What the error for a missing derivative says in addition: the text after "none:"; often empty.
inline std::string_view advice_without_gradient(const Op& op) {
  constexpr std::string_view prefix = "none: ";
  const std::string_view text = op.spec.gradient;
  return text.starts_with(prefix) ? text.substr(prefix.size()) : std::string_view{};
}

/// The op that runs instead of `op` when a gradient is needed: its gradient is "as <name>", and
/// that op has further outputs. nullptr for other ops. Throws std::invalid_argument unless it has
/// the same inputs and attributes, the same first outputs, and a gradient of its own.
const Op* training_form(const Op& op);

}  // namespace cudarelu

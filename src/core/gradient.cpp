#include "cudarelu/gradient.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>
#include <stdexcept>

#include "cudarelu/infer.h"

namespace cudarelu {
namespace {

using Kind = Expression::Kind;

/// The name of the gradient of an output is this and the name of the output.
constexpr std::string_view gradient_prefix = "grad_";

/// Deeper expressions would overflow the stack of some thread.
constexpr int max_depth = 64;

/// Begins the gradient of an op that has a training_form().
constexpr std::string_view form_prefix = "as ";

/// A shape as far as signatures tell it: dimensions of the op that has the gradient, and what
/// stands for `*`. A dimension without a name and with the size -1 may be anything.
struct KnownShape {
  enum class Star { none, own, unknown };  // own: the dimensions * of the op

  Star star = Star::unknown;
  std::vector<Dimension> dims;    // those after the *, or all
  std::vector<Dimension> before;  // those before the *

  std::string text() const {
    std::string text;
    const auto append = [&](const std::string& dim) { text += (text.empty() ? "" : ", ") + dim; };
    const auto append_all = [&](const std::vector<Dimension>& all) {
      for (const Dimension& dim : all) {
        append(!dim.name.empty() ? std::string(dim.name)
               : dim.size >= 0   ? std::to_string(dim.size)
                                 : "?");
      }
    };
    append_all(before);
    if (star != Star::none) append(star == Star::own ? "*" : "...");
    append_all(dims);
    return "[" + text + "]";
  }
};

KnownShape shape_in(const Parameter& tensor) {
  using Star = KnownShape::Star;
  if (tensor.broadcasts || !tensor.axis.empty()) return {};
  const Dimension* const star = tensor.dims.begin() + std::max(tensor.star, 0);
  return {tensor.has_star() ? Star::own : Star::none,
          {star, tensor.dims.end()},
          {tensor.dims.begin(), star}};
}

/// Whether two sizes are known to differ. A number, a name and an expression may be equal in the
/// calls of an op.
bool differ(const Dimension& a, const Dimension& b) {
  if (a.name.empty() != b.name.empty() || a.is_expression() || b.is_expression()) return false;
  return a.name != b.name || (a.size >= 0 && b.size >= 0 && a.size != b.size);
}

/// Whether the first dimensions that both have are known to differ.
bool differ(std::span<const Dimension> a, std::span<const Dimension> b) {
  const std::size_t common = std::min(a.size(), b.size());
  return !std::ranges::equal(a.first(common), b.first(common),
                             [](const Dimension& x, const Dimension& y) { return !differ(x, y); });
}

/// Whether two shapes are known to differ.
bool differ(const KnownShape& a, const KnownShape& b) {
  using Star = KnownShape::Star;
  const auto front = [](const KnownShape& shape) -> std::span<const Dimension> {
    return shape.star == Star::none ? shape.dims : shape.before;
  };
  const std::vector<Dimension> a_back(a.dims.rbegin(), a.dims.rend());
  const std::vector<Dimension> b_back(b.dims.rbegin(), b.dims.rend());
  if (differ(front(a), front(b)) || differ(std::span(a_back), std::span(b_back))) return true;
  const std::size_t a_size = a.before.size() + a.dims.size();
  const std::size_t b_size = b.before.size() + b.dims.size();
  if (a.star == b.star && a.star != Star::unknown) {
    return a_size != b_size || a.dims.size() != b.dims.size();
  }
  return (a.star == Star::none && a_size < b_size) || (b.star == Star::none && b_size < a_size);
}

/// The dimensions of a called op in terms of the op that has the gradient.
class CalledShapes {
 public:
  /// Reads the dimensions of an argument. Returns false if it cannot fit.
  bool bind(const Parameter& input, const KnownShape& argument) {
    using Star = KnownShape::Star;
    if (!input.axis.empty()) return true;
    const bool all = argument.star == Star::none;
    const std::size_t fixed = input.dims.size();
    const std::size_t given = argument.before.size() + argument.dims.size();
    if ((all && given < fixed) || (!input.has_star() && given > fixed)) return false;
    // Those before the * are read from the front, the others from the end.
    const auto before = static_cast<std::size_t>(std::max(input.star, 0));
    const std::span<const Dimension> front = all ? argument.dims : argument.before;
    const std::size_t from_front = std::min(input.has_star() || all ? before : fixed, front.size());
    const std::size_t from_end = std::min(fixed - before, argument.dims.size());
    for (std::size_t i = 0; i < from_front; ++i) {
      if (!bind(input.dims[i], front[i])) return false;
    }
    for (std::size_t i = 1; i <= from_end; ++i) {
      if (!bind(input.dims[fixed - i], argument.dims[argument.dims.size() - i])) return false;
    }
    if (!input.has_star()) return true;
    KnownShape rest;
    if (from_front == before && from_end == fixed - before) {
      const auto after = std::span(argument.dims).first(argument.dims.size() - from_end);
      const auto own = after.subspan(all ? before : 0);
      const auto own_before = front.subspan(all ? front.size() : before);
      rest = {argument.star, {own.begin(), own.end()}, {own_before.begin(), own_before.end()}};
    }
    if (star_known_) return !differ(star_, rest);
    star_ = std::move(rest);
    star_known_ = true;
    return true;
  }

  /// `attribute` gives the size that an attribute of the called op is.
  template <class AttributeSize>
  KnownShape shape_of(const Parameter& output, const AttributeSize& attribute) const {
    if (!output.axis.empty()) return {};
    KnownShape shape = output.has_star() ? star_ : KnownShape{KnownShape::Star::none, {}, {}};
    const bool all = shape.star == KnownShape::Star::none;
    for (std::size_t i = 0; i < output.dims.size(); ++i) {
      const Dimension& dim = output.dims[i];
      const auto bound = std::ranges::find(bound_, dim.name, &Bound::name);
      const Dimension size = dim.name.empty()        ? dim
                             : bound != bound_.end() ? bound->size
                                                     : attribute(dim.name);
      const bool is_before = static_cast<int>(i) < output.star;
      std::vector<Dimension>& dims = is_before && !all ? shape.before : shape.dims;
      dims.insert(is_before ? dims.begin() + static_cast<std::ptrdiff_t>(i) : dims.end(), size);
    }
    return shape;
  }

 private:
  struct Bound {
    std::string_view name;
    Dimension size;
  };

  bool bind(const Dimension& dim, const Dimension& size) {
    if (dim.name.empty()) return !differ(dim, size);
    const auto bound = std::ranges::find(bound_, dim.name, &Bound::name);
    if (bound != bound_.end()) return !differ(bound->size, size);
    bound_.push_back({dim.name, size});
    return true;
  }

  std::vector<Bound> bound_;
  KnownShape star_;
  bool star_known_ = false;
};

class GradientParser {
 public:
  explicit GradientParser(const Op& op) : op_(op), rest_(op.spec.gradient) {}

  std::vector<Gradient> parse() {
    std::vector<Gradient> gradients;
    if (training_form(op_) != nullptr) return gradients;
    while (skip_space(), !rest_.empty()) {
      const std::string_view name = word();
      const int input = index_of(op_.signature.inputs, name);
      const std::string text(name);
      if (input < 0 || !accept('=')) {
        fail("must be `input = expression`" +
             (input < 0 && !text.empty() ? ", and " + text + " is no input" : ""));
      }
      const Parameter& parameter = op_.signature.inputs[static_cast<std::size_t>(input)];
      if (!op_.signature.may_have_gradient(parameter)) {
        fail("has " + text + ", which holds integers");
      }
      if (std::ranges::find(gradients, input, &Gradient::input) != gradients.end()) {
        fail("has " + text + " twice");
      }
      gradients.push_back({input, expression()});
      check_value("of " + text + " is ", gradients.back().value);
      check_shape(gradients.back());
      if (!accept(';')) break;
    }
    if (!rest_.empty()) {
      fail("has `" + std::string(rest_) +
           "` after its end; an expression is made of calls of ops, such as scale(x, 2), and +");
    }
    return gradients;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(std::string(op_.name) + ": the gradient " + what);
  }
  void skip_space() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.front())) != 0) {
      rest_.remove_prefix(1);
    }
  }
  bool accept(char token) {
    skip_space();
    if (rest_.empty() || rest_.front() != token) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::string_view word() {
    skip_space();
    std::size_t length = 0;
    while (length < rest_.size() &&
           (std::isalnum(static_cast<unsigned char>(rest_[length])) != 0 || rest_[length] == '_' ||
            rest_[length] == '.' || rest_[length] == '-' || rest_[length] == ':')) {
      ++length;
    }
    const std::string_view result = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return result;
  }

  Expression expression() {
    Expression first = term();
    if (!accept('+')) return first;
    Expression result;
    result.kind = Kind::sum;
    result.text = first.text;
    result.arguments.push_back(std::move(first));
    do {
      result.arguments.push_back(term());
      result.text += " + " + result.arguments.back().text;
    } while (accept('+'));
    for (const Expression& term : result.arguments) check_value("has a sum of ", term);
    return result;
  }

  Expression term() {
    const std::string_view name = word();
    if (name.empty()) fail("lacks a name");
    Expression result;
    result.text = name;
    if (accept('(')) {
      if (++depth_ > max_depth) {
        fail("has more than " + std::to_string(max_depth) + " nested calls");
      }
      result.kind = Kind::call;
      result.op = find_op(name, *op_.module);
      if (result.op == nullptr) fail_unknown_op(result.text);
      result.text += '(';
      while (!accept(')')) {
        if (!result.arguments.empty()) {
          if (!accept(',')) fail("lacks a comma or a parenthesis");
          result.text += ", ";
        }
        result.arguments.push_back(expression());
        result.text += result.arguments.back().text;
      }
      --depth_;
      result.text += ')';
      const Signature& called = result.op->signature;
      if (result.arguments.size() != called.inputs.size() + called.attributes.size()) {
        fail("calls " + std::string(name) + " with the wrong number of arguments");
      }
      check_arguments(result);
      if (called.outputs.size() == 1) return result;
      const std::string_view output = accept('.') ? word() : std::string_view();
      result.output = index_of(called.outputs, output);
      if (result.output < 0) fail("must select an output of " + std::string(name));
      result.text.append(".").append(output);
      return result;
    }
    const char* end = name.data() + name.size();
    if (const auto [stop, error] = std::from_chars(name.data(), end, result.number);
        error == std::errc() && stop == end) {
      result.kind = Kind::number;
      return result;
    }
    if (name == "none") {
      result.kind = Kind::none;
      return result;
    }
    const Signature& own = op_.signature;
    if (result.index = index_of(own.inputs, name); result.index >= 0) {
      result.kind = Kind::input;
    } else if (result.index = index_of(own.outputs, name); result.index >= 0) {
      result.kind = Kind::output;
    } else if (result.index = index_of(own.attributes, name); result.index >= 0) {
      result.kind = Kind::attribute;
    } else if (result.index = name.starts_with(gradient_prefix)
                                  ? index_of(own.outputs, name.substr(gradient_prefix.size()))
                                  : -1;
               result.index >= 0) {
      result.kind = Kind::output_gradient;
      if (!own.may_have_gradient(own.outputs[static_cast<std::size_t>(result.index)])) {
        fail("names " + result.text + ", but " + result.text.substr(gradient_prefix.size()) +
             " holds integers");
      }
    } else {
      fail("names " + result.text + ", which is not in the signature");
    }
    return result;
  }

  /// Names the module that has the op, if the name lacks it.
  [[noreturn]] void fail_unknown_op(const std::string& name) const {
    for (const Module* module : modules()) {
      if (module->find(name) == nullptr) continue;
      std::string message = "calls " + name + ", which the module ";
      message.append(op_.module->name)
          .append(" does not have; that of another module is ")
          .append(module->name)
          .append("::")
          .append(name);
      fail(message);
    }
    fail("calls " + name + ", which no loaded module has");
  }

  static bool is_tensor(const Expression& expression) {
    return expression.kind != Kind::attribute && expression.kind != Kind::number &&
           expression.kind != Kind::none;
  }

  /// The input that an expression is, if it may be absent and has no other input as stand-in.
  const Parameter* absent_input(const Expression& expression) const {
    if (expression.kind != Kind::input) return nullptr;
    const Parameter& input = op_.signature.inputs[static_cast<std::size_t>(expression.index)];
    return input.required() ? nullptr : &input;
  }

  /// Rejects a term, or a whole gradient, that is not a tensor in every call.
  void check_value(const std::string& what, const Expression& value) const {
    if (!is_tensor(value)) fail(what + value.text + ", which is not a tensor");
    if (absent_input(value) != nullptr) fail(what + value.text + ", which may be absent");
  }

  void check_arguments(const Expression& call) const {
    const Signature& called = call.op->signature;
    for (std::size_t i = 0; i < call.arguments.size(); ++i) {
      if (i < called.inputs.size()) {
        check_input(call, call.arguments[i], called.inputs[i]);
      } else {
        check_attribute(call, call.arguments[i], called.attributes[i - called.inputs.size()]);
      }
    }
  }

  [[noreturn]] void fail_argument(const Expression& call, const Expression& argument,
                                  std::string_view parameter, const std::string& what) const {
    fail("passes " + argument.text + " for " + std::string(parameter) + " of " +
         std::string(call.op->name) + ", which " + what);
  }

  void check_input(const Expression& call, const Expression& argument,
                   const Parameter& input) const {
    if (argument.kind != Kind::none && !is_tensor(argument)) {
      fail_argument(call, argument, input.name, "is a tensor");
    }
    if (input.optional) return;
    if (argument.kind == Kind::none) fail_argument(call, argument, input.name, "is required");
    const Parameter* const absent = absent_input(argument);
    if (absent != nullptr &&
        op_.signature.shape_source_of(static_cast<std::size_t>(argument.index)) < 0) {
      fail("passes " + argument.text + ", which may be absent, for " + std::string(input.name) +
           " of " + std::string(call.op->name) + ", which is required");
    }
  }

  void check_attribute(const Expression& call, const Expression& argument,
                       const AttributeSpec& spec) const {
    if (argument.kind == Kind::attribute) {
      const auto& own = op_.signature.attributes[static_cast<std::size_t>(argument.index)];
      if (kind_of(own) == kind_of(spec)) return;
      fail_argument(call, argument, spec.name, "must be " + kind_of(spec));
    }
    if (argument.kind != Kind::number) {
      fail_argument(call, argument, spec.name, "is an attribute");
    }
    if (spec.type != AttributeType::real && std::trunc(argument.number) != argument.number) {
      fail_argument(call, argument, spec.name, "must be " + kind_of(spec));
    }
    if (!in_range(spec, argument.number)) {
      fail_argument(call, argument, spec.name, "must be " + range_of(spec));
    }
  }

  /// Rejects a gradient whose shape is known not to be that of its input. The gradient of an input
  /// that broadcasts is summed to its shape.
  void check_shape(const Gradient& gradient) const {
    const Parameter& input = op_.signature.inputs[static_cast<std::size_t>(gradient.input)];
    const KnownShape wanted = shape_in(input);
    const KnownShape shape = shape_of(gradient.value);
    // The expression must be right for any number of dimensions *.
    const bool same_star = wanted.star == shape.star || wanted.star == KnownShape::Star::unknown ||
                           shape.star == KnownShape::Star::unknown;
    if (same_star && !differ(wanted, shape)) return;
    fail("of " + std::string(input.name) + " has the shape " + shape.text() + ", but " +
         std::string(input.name) + " is " + wanted.text());
  }

  KnownShape shape_of(const Expression& value) const {
    const auto own = static_cast<std::size_t>(value.index);
    switch (value.kind) {
      case Kind::input:
        return shape_in(op_.signature.inputs[own]);
      case Kind::output:
      case Kind::output_gradient:
        return shape_in(op_.signature.outputs[own]);
      case Kind::sum: {
        const KnownShape first = shape_of(value.arguments.front());
        const bool same =
            std::all_of(value.arguments.begin() + 1, value.arguments.end(),
                        [&](const Expression& term) { return !differ(first, shape_of(term)); });
        return same ? first : KnownShape();  // the terms broadcast
      }
      case Kind::call:
        return shape_of_call(value);
      default:
        return {};
    }
  }

  KnownShape shape_of_call(const Expression& call) const {
    const Signature& called = call.op->signature;
    CalledShapes shapes;
    for (std::size_t i = 0; i < called.inputs.size(); ++i) {
      const Expression& argument = call.arguments[i];
      if (!is_tensor(argument) || called.inputs[i].broadcasts) continue;
      const KnownShape given = shape_of(argument);
      if (!shapes.bind(called.inputs[i], given)) {
        fail("passes " + argument.text + ", which is " + given.text() + ", for " +
             std::string(called.inputs[i].name) + " of " + std::string(call.op->name) +
             ", which does not fit " + std::string(call.op->spec.signature));
      }
    }
    const auto attribute = [&](std::string_view name) -> Dimension {
      const int i = index_of(called.attributes, name);
      if (i < 0) return {};
      const Expression& size = call.arguments[called.inputs.size() + static_cast<std::size_t>(i)];
      if (size.kind != Kind::attribute) return {{}, static_cast<std::int64_t>(size.number)};
      return {op_.signature.attributes[static_cast<std::size_t>(size.index)].name, -1};
    };
    return shapes.shape_of(called.outputs[static_cast<std::size_t>(call.output)], attribute);
  }

  const Op& op_;
  std::string_view rest_;
  int depth_ = 0;  // of calls
};

}  // namespace

const Op* training_form(const Op& op) {
  if (!op.spec.gradient.starts_with(form_prefix)) return nullptr;
  const Op* const form = find_op(op.spec.gradient.substr(form_prefix.size()), *op.module);
  const bool fits =
      form != nullptr && !form->spec.gradient.starts_with(form_prefix) &&
      form->signature.inputs == op.signature.inputs &&
      form->signature.attributes == op.signature.attributes &&
      form->signature.outputs.size() >= op.signature.outputs.size() &&
      std::ranges::equal(op.signature.outputs,
                         std::span(form->signature.outputs.begin(), op.signature.outputs.size()));
  if (!fits) {
    throw std::invalid_argument(std::string(op.name) +
                                ": the op that `as` names must have the same inputs, "
                                "attributes and first outputs, and a gradient of its own");
  }
  return form;
}

std::vector<Gradient> parse_gradient(const Op& op) {
  if (!advice_without_gradient(op).empty()) return {};
  return GradientParser(op).parse();
}

}  // namespace cudarelu

#include "cudarelu/gradient.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <stdexcept>

namespace cudarelu {
namespace {

class GradientParser {
 public:
  explicit GradientParser(const Op& op) : op_(op), rest_(op.spec.gradient) {}

  std::vector<Gradient> parse() {
    std::vector<Gradient> gradients;
    if (training_form(op_) != nullptr) return gradients;
    while (skip_space(), !rest_.empty()) {
      const std::string_view name = word();
      const int input = index_of(op_.signature.inputs, name);
      if (input < 0 || !accept('=')) fail("must be `input = expression`");
      gradients.push_back({input, expression()});
      if (!accept(';')) break;
    }
    if (!rest_.empty()) fail("has text after its end");
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
            rest_[length] == '.' || rest_[length] == '-')) {
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
    result.kind = Expression::Kind::sum;
    result.text = first.text;
    result.arguments.push_back(std::move(first));
    do {
      result.arguments.push_back(term());
      result.text += " + " + result.arguments.back().text;
    } while (accept('+'));
    return result;
  }

  Expression term() {
    const std::string_view name = word();
    if (name.empty()) fail("lacks a name");
    Expression result;
    result.text = name;
    if (accept('(')) {
      result.kind = Expression::Kind::call;
      result.op = find_op(name);
      if (result.op == nullptr) fail("calls " + result.text + ", which is not in the table");
      result.text += '(';
      while (!accept(')')) {
        if (!result.arguments.empty()) {
          if (!accept(',')) fail("lacks a comma or a parenthesis");
          result.text += ", ";
        }
        result.arguments.push_back(expression());
        result.text += result.arguments.back().text;
      }
      result.text += ')';
      const Signature& called = result.op->signature;
      if (result.arguments.size() != called.inputs.size() + called.attributes.size()) {
        fail("calls " + std::string(name) + " with the wrong number of arguments");
      }
      if (called.outputs.size() == 1) return result;
      const std::string_view output = accept('.') ? word() : std::string_view();
      result.output = index_of(called.outputs, output);
      if (result.output < 0) fail("names no output of " + std::string(name));
      result.text.append(".").append(output);
      return result;
    }
    const char* end = name.data() + name.size();
    if (const auto [stop, error] = std::from_chars(name.data(), end, result.number);
        error == std::errc() && stop == end) {
      result.kind = Expression::Kind::number;
      return result;
    }
    constexpr std::string_view prefix = "grad_";
    using Kind = Expression::Kind;
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
    } else if (result.index = name.starts_with(prefix)
                                  ? index_of(own.outputs, name.substr(prefix.size()))
                                  : -1;
               result.index >= 0) {
      result.kind = Kind::output_gradient;
    } else {
      fail("names " + result.text + ", which the signature does not");
    }
    return result;
  }

  const Op& op_;
  std::string_view rest_;
};

}  // namespace

const Op* training_form(const Op& op) {
  constexpr std::string_view prefix = "as ";
  if (!op.spec.gradient.starts_with(prefix)) return nullptr;
  const Op* const form = find_op(op.spec.gradient.substr(prefix.size()));
  const bool fits =
      form != nullptr && form->signature.inputs == op.signature.inputs &&
      form->signature.attributes == op.signature.attributes &&
      form->signature.outputs.size() >= op.signature.outputs.size() &&
      std::ranges::equal(op.signature.outputs,
                         std::span(form->signature.outputs.begin(), op.signature.outputs.size()));
  if (!fits) {
    throw std::invalid_argument(std::string(op.name) + ": the gradient names no op of its form");
  }
  return form;
}

std::vector<Gradient> parse_gradient(const Op& op) { return GradientParser(op).parse(); }

}  // namespace cudarelu

// The signature line of an op, parsed at compile time: a malformed one does not compile.
//
//   bias_relu(x: T[*, c], bias: T[c], *, scale: float = 1.0) -> y: T[*, c]
//
//   op         name(inputs, *, attributes) -> output        or  -> (output, output)
//   input      name: dtype[dims]      name: dtype[dims]?    (may be absent)
//              name: dtype[dims]? = other                   (absent: input `other` takes its place)
//              name: dtype[dims]? = 1                       (absent: as if of that number)
//              name: dtype[dims]? = min(other)              (absent: as if that of the rows of
//              `other`;
//                                                            also max)
//              name: dtype[dims] > 0                        (its elements must be)
//   dtype      T (one of the op's dtypes, the same for all)   i32   i64
//              offsets(n): int32, where each batch of n rows ends; none decreases, none is over n
//   dims       names bind across tensors, numbers are fixed, a leading * is any shape;
//              in outputs a name may also be an integer attribute
//   attribute  name: float = 1.0      name: int = 16 in [1, 1024]      (no default: required)
//              name: none | tanh = none   (an enumeration: a label, whose position is its value)
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "cudarelu/dtype.h"

namespace cudarelu {

/// A vector of at most N elements that a constant expression can hold.
template <class T, std::size_t N>
class FixedVector {
 public:
  constexpr void push_back(const T& value) {
    if (size_ == N) throw std::invalid_argument("too many elements");
    items_[size_++] = value;
  }
  static constexpr std::size_t capacity() { return N; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool operator==(const FixedVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T& operator[](std::size_t i) const { return items_[i]; }
  constexpr const T* begin() const { return items_.data(); }
  constexpr const T* end() const { return items_.data() + size_; }

 private:
  std::array<T, N> items_{};
  std::size_t size_ = 0;
};

struct Dimension {
  std::string_view name;   // empty: a fixed size
  std::int64_t size = -1;  // the fixed size

  constexpr bool operator==(const Dimension&) const = default;
};

enum class ElementKind { type_variable, int32, int64, offsets };

/// What an op makes of an optional input that is absent.
enum class Absent {
  nothing,  // what it says
  input,    // another input takes the place
  number,   // as if all elements were that
  minimum,  // as if it were that of the rows of another input
  maximum,
};

struct Parameter {
  std::string_view name;
  ElementKind kind = ElementKind::type_variable;
  std::string_view offsets_into;   // of kind offsets: the dimension that the offsets divide
  bool leading = false;            // the dims begin with *
  FixedVector<Dimension, 8> dims;  // those after the *
  bool optional = false;
  bool positive = false;  // the elements must be
  Absent absent = Absent::nothing;
  int source = -1;    // the other input, of the kinds that have one
  double number = 0;  // of kind number

  /// The input that takes this one's place where it is absent; -1: none does.
  constexpr int stand_in() const { return absent == Absent::input ? source : -1; }

  constexpr bool operator==(const Parameter&) const = default;

  /// The element type where the type variable stands for `variable`.
  constexpr DType dtype(DType variable) const {
    switch (kind) {
      case ElementKind::type_variable:
        return variable;
      case ElementKind::int64:
        return DType::int64;
      default:
        return DType::int32;
    }
  }
};

struct AttributeSpec {
  std::string_view name;
  bool integer = false;
  FixedVector<std::string_view, 8> labels;  // of an enumeration, which is an integer too
  bool required = false;
  double default_value = 0;
  double lowest = -std::numeric_limits<double>::infinity();
  double highest = std::numeric_limits<double>::infinity();

  constexpr bool operator==(const AttributeSpec&) const = default;
};

struct Signature {
  std::string_view name;
  FixedVector<Parameter, 8> inputs;
  FixedVector<AttributeSpec, 8> attributes;
  FixedVector<Parameter, 4> outputs;

  /// Whether there are inputs, and all tensors are `T[*]` and required: of one dtype and one shape.
  constexpr bool uniform() const {
    const auto is_free = [](const Parameter& tensor) {
      return tensor.kind == ElementKind::type_variable && tensor.leading && tensor.dims.empty() &&
             !tensor.optional;
    };
    return !inputs.empty() && std::all_of(inputs.begin(), inputs.end(), is_free) &&
           std::all_of(outputs.begin(), outputs.end(), is_free);
  }
};

/// The position of the element named `name`, or -1.
template <class List>
constexpr int index_of(const List& list, std::string_view name) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

namespace detail {

class SignatureParser {
 public:
  constexpr explicit SignatureParser(std::string_view text) : rest_(text) {}

  constexpr Signature parse() {
    signature_.name = word();
    expect("(");
    bool attributes = false;
    while (!accept(")")) {
      if (!signature_.inputs.empty() || attributes) expect(",");
      if (!attributes && accept("*")) {
        attributes = true;
        expect(",");
      }
      if (attributes) {
        signature_.attributes.push_back(attribute());
      } else {
        signature_.inputs.push_back(parameter());
      }
    }
    expect("->");
    if (accept("(")) {
      do signature_.outputs.push_back(parameter());
      while (accept(","));
      expect(")");
    } else {
      signature_.outputs.push_back(parameter());
    }
    if (!rest_.empty()) throw std::invalid_argument("signature: text after the outputs");
    for (const Parameter& output : signature_.outputs) check_output(output);
    for (const Parameter& input : signature_.inputs) check_offsets(input);
    return signature_;
  }

 private:
  constexpr void skip_space() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  constexpr bool accept(std::string_view token) {
    skip_space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    skip_space();
    return true;
  }
  constexpr void expect(std::string_view token) {
    if (!accept(token)) throw std::invalid_argument("signature: a token is missing");
  }
  static constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
  constexpr std::string_view word() {
    skip_space();
    std::size_t length = 0;
    while (length < rest_.size() &&
           (rest_[length] == '_' || is_digit(rest_[length]) ||
            (rest_[length] >= 'a' && rest_[length] <= 'z') || rest_[length] == 'T')) {
      ++length;
    }
    if (length == 0) throw std::invalid_argument("signature: a name is missing");
    const std::string_view result = rest_.substr(0, length);
    rest_.remove_prefix(length);
    skip_space();
    return result;
  }
  /// A decimal number; `inf` stands for infinity. Up to 15 digits: exact before the one division.
  constexpr double number() {
    const double sign = accept("-") ? -1.0 : 1.0;
    if (accept("inf")) return sign * std::numeric_limits<double>::infinity();
    if (rest_.empty() || !is_digit(rest_.front())) {
      throw std::invalid_argument("signature: a number is missing");
    }
    double digits = 0;
    double divisor = 1;
    bool fraction = false;
    for (; !rest_.empty() && (is_digit(rest_.front()) || rest_.front() == '.');
         rest_.remove_prefix(1)) {
      if (rest_.front() == '.') {
        fraction = true;
      } else {
        digits = digits * 10 + (rest_.front() - '0');
        if (fraction) divisor *= 10;
      }
    }
    if (!rest_.empty() && rest_.front() == 'e') {
      rest_.remove_prefix(1);
      const bool negative = accept("-");
      const int exponent = static_cast<int>(number());
      for (int i = 0; i < exponent; ++i) (negative ? divisor : digits) *= 10;
    }
    skip_space();
    return sign * digits / divisor;
  }
  constexpr Dimension dimension() {
    skip_space();
    if (!rest_.empty() && is_digit(rest_.front())) {
      return {{}, static_cast<std::int64_t>(number())};
    }
    return {word(), -1};
  }
  constexpr Parameter parameter() {
    Parameter result;
    result.name = word();
    expect(":");
    const std::string_view dtype = word();
    if (dtype == "offsets") {
      result.kind = ElementKind::offsets;
      expect("(");
      result.offsets_into = word();
      expect(")");
    } else if (dtype == "i32") {
      result.kind = ElementKind::int32;
    } else if (dtype == "i64") {
      result.kind = ElementKind::int64;
    } else if (dtype != "T") {
      throw std::invalid_argument("signature: unknown dtype");
    }
    expect("[");
    if (accept("*")) result.leading = true;
    bool first = !result.leading;
    while (!accept("]")) {
      if (!first) expect(",");
      result.dims.push_back(dimension());
      first = false;
    }
    result.optional = accept("?");
    if (accept(">")) {
      expect("0");
      result.positive = true;
    }
    if (!result.optional || !accept("=")) return result;
    if (is_digit(rest_.front())) {
      result.absent = Absent::number;
      result.number = number();
      return result;
    }
    std::string_view name = word();
    result.absent = Absent::input;
    if (accept("(")) {
      if (name != "min" && name != "max") throw std::invalid_argument("signature: no stand-in");
      result.absent = name == "min" ? Absent::minimum : Absent::maximum;
      name = word();
      expect(")");
    }
    result.source = index_of(signature_.inputs, name);
    if (result.source < 0) throw std::invalid_argument("signature: unknown stand-in");
    return result;
  }
  constexpr AttributeSpec attribute() {
    AttributeSpec result;
    result.name = word();
    expect(":");
    const std::string_view type = word();
    if (accept("|")) return enumeration(result, type);
    if (type != "int" && type != "float") throw std::invalid_argument("signature: unknown type");
    result.integer = type == "int";
    result.required = !accept("=");
    if (!result.required) result.default_value = number();
    if (accept("in")) {
      expect("[");
      result.lowest = number();
      expect(",");
      result.highest = number();
      expect("]");
    }
    return result;
  }
  /// The rest of an attribute, after its first label.
  constexpr AttributeSpec enumeration(AttributeSpec result, std::string_view first) {
    result.integer = true;
    result.labels.push_back(first);
    do result.labels.push_back(word());
    while (accept("|"));
    result.lowest = 0;
    result.highest = static_cast<double>(result.labels.size() - 1);
    result.required = !accept("=");
    if (!result.required) {
      const auto label = std::ranges::find(result.labels, word());
      if (label == result.labels.end()) throw std::invalid_argument("signature: unknown label");
      result.default_value = static_cast<double>(label - result.labels.begin());
    }
    return result;
  }
  constexpr bool is_bound(std::string_view dimension) const {
    for (const Parameter& input : signature_.inputs) {
      if (index_of(input.dims, dimension) >= 0) return true;
    }
    return false;
  }
  constexpr void check_offsets(const Parameter& input) const {
    if (input.kind == ElementKind::offsets && !is_bound(input.offsets_into)) {
      throw std::invalid_argument("signature: offsets into an unknown dimension");
    }
  }
  constexpr void check_output(const Parameter& output) const {
    for (const Dimension& dim : output.dims) {
      if (dim.name.empty()) continue;
      bool known = is_bound(dim.name);
      const int attribute = index_of(signature_.attributes, dim.name);
      if (attribute >= 0) {
        const AttributeSpec& spec = signature_.attributes[static_cast<std::size_t>(attribute)];
        known |= spec.integer && spec.labels.empty();
      }
      if (!known) throw std::invalid_argument("signature: an output has an unknown dimension");
    }
  }

  std::string_view rest_;
  Signature signature_;
};

}  // namespace detail

/// Parses a signature line. Throws std::invalid_argument, which in a constant expression is a
/// compile-time error; the result refers to `text`, which must outlive it.
constexpr Signature parse_signature(std::string_view text) {
  return detail::SignatureParser(text).parse();
}

}  // namespace cudarelu

// The signature line of an op, parsed at compile time: a malformed one does not compile.
//
//   bias_relu(x: T[*, c], bias: T[c], *, scale: float = 1.0) -> y: T[*, c]
//
//   op         name(inputs, *, attributes) -> output        or  -> (output, output)
//              ... where U: i32 | i64, V: T | f32           type variables beside T: U, V and W
//   input      name: dtype[dims]                 required
//              name: dtype[dims]?                optional: the op defines what it does without it
//              name: dtype[dims]? = other        if absent: the tensor of input `other`
//              name: dtype[dims]? = 1            if absent: every element is this number
//              name: dtype[dims]? = min(other)   if absent: the minimum over the rows of `other`;
//                                                or max(other)
//              name: dtype[dims] > 0             every element must be greater than 0
//              name: broadcast dtype[dims]       a shape that broadcasts to dims, as in NumPy
//   output     name: dtype[dims]
//              name: other                       the dtype and the shape of the input `other`
//   dtype      T (one of the op's dtypes, the same for all)   U (of `where`, the same for all)
//              bool i8 u8 i32 i64 f16 bf16 f32 f64
//              T | f32   f16 | f32               one of these, for this input alone; in outputs
//              x   to                            the dtype of input x; the one that the attribute
//                                                `to` has
//              offsets(n): int32, the end of each batch of the rows of dimension n; they do not
//              decrease, and none is over n
//   dims       n: one size in all tensors   3: this size   2*d + 1: an expression
//              *: any sizes, the same in all tensors; once in a tensor, at any place
//              c @ axis, after *: among the dims * and c, number `axis`, an int attribute; -1: the
//              last
//              g divides h: the size h is a multiple of g
//   expression + - *, // (rounded down), cdiv(a, b) (rounded up), min(a, b), max(a, b), ( ), of
//              sizes, numbers and integer attributes; numel(x): the number of elements of input x
//   attribute  name: float = 1.0      name: int = 16 in [1, 1024]      (no default: required)
//              name: bool = false     name: float?   (a number or none, which the op defines)
//              name: none | tanh = none   (an enumeration: a label, whose position is its value)
//              name: f16 | bf16 = bf16    (a dtype: all labels are; in ONNX a number of
//              TensorProto)
//
// - Required inputs come first, and there is at least one: it determines the device of a call.
// - T is the dtype of the inputs that are T alone, or else of those that are T | others.
// - The dtypes and dimensions of outputs come from attributes, and from inputs that have a tensor
// in
//   every call: required ones, and optional ones with `= other`. So do the dimensions that offsets
//   divide.
// - The indices of a leading * are independent: hosts may batch and shard them. Those of a * at
//   another place need not be.
// - An integer attribute is meant wherever its name is in dims. If it stands alone, its range must
//   begin at 0 or above.
// - A size is known if it stands alone in an input that has a tensor in every call. Expressions in
//   such inputs are then read from left to right. Each may have one size that is not known, once,
//   with known factors and terms: 2*d + k. It is solved for that size, and a remainder is an error.
//   So is a size below 0, an overflow, and a divisor below 1.
// - Optional offsets must have `= other`.
// - An optional input > 0 must have `= other` or a number.
// - Names are not keywords of Python, since Python's functions use them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cudarelu/detail/dtype.h"

namespace cudarelu {

/// A vector of at most N elements, for constant expressions.
template <class T, std::size_t N>
class FixedVector {
 public:
  /// Throws std::invalid_argument(error) if it is full.
  constexpr void push_back(const T& value, const char* error) {
    if (size_ == N) throw std::invalid_argument(error);
    items_[size_++] = value;
  }
  static constexpr std::size_t capacity() { return N; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool operator==(const FixedVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  constexpr bool empty() const { return size_ == 0; }
  constexpr void pop_back() { --size_; }
  constexpr const T& operator[](std::size_t i) const { return items_[i]; }
  constexpr T& operator[](std::size_t i) { return items_[i]; }
  constexpr const T* begin() const { return items_.data(); }
  constexpr const T* end() const { return items_.data() + size_; }

 private:
  std::array<T, N> items_{};
  std::size_t size_ = 0;
};

/// The position of the element named `name`, or -1.
template <class List>
constexpr int index_of(const List& list, std::string_view name) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

/// The names of the dtypes in signatures.
inline constexpr std::array<std::string_view, all_dtypes.size()> short_dtype_names{
    "f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "bool"};

/// The dtype of such a name; nothing for another name.
constexpr std::optional<DType> find_dtype(std::string_view name) {
  const auto found = std::find(short_dtype_names.begin(), short_dtype_names.end(), name);
  if (found == short_dtype_names.end()) return std::nullopt;
  return all_dtypes[static_cast<std::size_t>(found - short_dtype_names.begin())];
}

/// The name of a type variable: T, or U, V or W of `where`.
constexpr std::string_view type_variable_name(std::size_t index) {
  return std::string_view("TUVW").substr(index, 1);
}

/// A number, a size, an attribute or an operator of an expression, which is in postfix order.
struct Term {
  enum class Kind : std::uint8_t {
    number,
    size,
    attribute,
    elements,  // the number of elements of an input
    add,
    subtract,
    multiply,
    floor_divide,
    ceil_divide,
    minimum,
    maximum,
  };

  Kind kind = Kind::number;
  std::string_view name;   // of a size, an attribute or an input
  std::int64_t value = 0;  // the number, or the position of the attribute or of the input

  constexpr bool is_operator() const { return kind >= Kind::add; }
};

/// An operator as signatures have it. From ceil_divide on, it is a function of two sizes.
constexpr std::string_view operator_name(Term::Kind kind) {
  constexpr std::array<std::string_view, 7> names{"+", "-", "*", "//", "cdiv", "min", "max"};
  return names[static_cast<std::size_t>(kind) - static_cast<std::size_t>(Term::Kind::add)];
}

struct Dimension {
  std::string_view name;   // of a size, or the text of an expression; empty: a fixed size
  std::int64_t size = -1;  // the fixed size
  // The terms of an expression in Signature::terms; none for a name or a fixed size.
  std::uint8_t first_term = 0;
  std::uint8_t terms = 0;

  /// Two expressions are equal if their texts are.
  constexpr bool operator==(const Dimension& other) const {
    return name == other.name && size == other.size;
  }

  constexpr bool is_one() const { return name.empty() && size == 1; }
  constexpr bool is_fixed() const { return name.empty(); }
  constexpr bool is_expression() const { return terms > 0; }
  constexpr bool is_name() const { return !name.empty() && terms == 0; }
};

/// A type variable that is declared by `where`.
struct TypeVariable {
  bool or_t = false;  // it may be T too
  DTypeSet dtypes;

  constexpr bool operator==(const TypeVariable&) const = default;
};

/// The element types that a tensor may have.
struct ElementType {
  enum class Kind : std::uint8_t {
    variable,   // that of a type variable, or one of `dtypes`
    fixed,      // one of `dtypes`
    offsets,    // int32
    input,      // of an output: the dtype of an input
    attribute,  // of an output: the dtype that an attribute chooses
  };

  Kind kind = Kind::variable;
  std::uint8_t index = 0;  // of the variable, where 0 is T; of the input or of the attribute
  DTypeSet dtypes;

  constexpr bool operator==(const ElementType&) const = default;

  /// Whether each call has the same dtype.
  constexpr bool is_single() const {
    return kind == Kind::offsets || (kind == Kind::fixed && dtypes.size() == 1);
  }
  constexpr bool is_variable() const { return kind == Kind::variable && dtypes.bits == 0; }
  constexpr bool is_t() const { return is_variable() && index == 0; }
  /// Whether the input may have one of several dtypes, regardless of other inputs.
  constexpr bool is_union() const {
    return (kind == Kind::variable && dtypes.bits != 0) ||
           (kind == Kind::fixed && dtypes.size() > 1);
  }
  constexpr bool is_offsets() const { return kind == Kind::offsets; }
};

/// The dtypes of the type variables of a call: of T, and of those of `where`.
using VariableDTypes = std::array<DType, 4>;

/// The value of an optional input that is absent.
enum class Absent {
  nothing,  // as the op defines it
  input,    // the tensor of another input, its stand-in
  number,   // a number for every element
  minimum,  // the minimum over the rows of another input
  maximum,
};

/// A tensor of a signature.
struct Parameter {
  std::string_view name;
  ElementType type;
  std::string_view offsets_into;   // of offsets: the dimension that they divide
  int star = -1;                   // the position of the * among the dims; -1: there is none
  bool broadcasts = false;         // the shape may be any that broadcasts to the dims
  FixedVector<Dimension, 8> dims;  // those beside the *
  std::string_view axis;  // the attribute that places dims[star] among it and the *; empty: none
  bool optional = false;
  bool positive = false;  // every element must be greater than 0
  Absent absent = Absent::nothing;
  int source = -1;    // of kinds input, minimum and maximum: the other input
  double number = 0;  // of kind number

  constexpr bool has_star() const { return star >= 0; }
  constexpr bool leading() const { return star == 0; }

  /// The axis of dims[i] in a tensor of this rank, except of one that an attribute places.
  constexpr std::size_t axis_of(std::size_t i, std::size_t rank) const {
    return static_cast<int>(i) < star ? i : rank - dims.size() + i;
  }

  /// The input whose tensor is used if this one is absent, or -1.
  constexpr int default_input() const { return absent == Absent::input ? source : -1; }

  /// Whether every call has a tensor for the input: its own or that of its default input.
  constexpr bool required() const { return !optional || default_input() >= 0; }

  constexpr bool operator==(const Parameter&) const = default;

  /// Whether the two always have the same dtype and the same shape.
  constexpr bool is_like(const Parameter& other) const {
    return type == other.type && !type.is_union() && star == other.star && dims == other.dims &&
           axis == other.axis && !broadcasts && !other.broadcasts;
  }

  /// Whether the dtype may be T.
  constexpr bool is_generic() const {
    return type.kind == ElementType::Kind::variable && type.index == 0;
  }

  /// Whether kernels that read strides get them for this tensor: it is of type T, has a shape and
  /// values that the reader need not look at, its last dimension has a name, a * is leading,
  /// and no attribute places a dimension.
  constexpr bool may_be_strided() const {
    return type.is_t() && !broadcasts && !positive && !dims.empty() && star <= 0 && axis.empty();
  }

  /// The dtype of a tensor that has no choice of its own; of a union, one of those that it may
  /// have.
  constexpr DType dtype(const VariableDTypes& variables) const {
    if (type.kind == ElementType::Kind::variable) return variables[type.index];
    return type.kind == ElementType::Kind::fixed ? type.dtypes.first() : DType::int32;
  }
};

enum class AttributeType {
  real,
  integer,
  boolean,  // the integer 0 or 1
  label,    // one of the labels of an enumeration; the value is its position
};

struct AttributeSpec {
  std::string_view name;
  AttributeType type = AttributeType::real;
  FixedVector<std::string_view, 8> labels;  // empty except for AttributeType::label
  bool required = false;
  bool optional = false;  // may be none, which is NaN in a call
  double default_value = 0;
  double lowest = -std::numeric_limits<double>::infinity();
  double highest = std::numeric_limits<double>::infinity();
  bool is_dtype = false;  // of an enumeration: its labels are dtypes

  /// The dtype that the label at a position is; of an unknown position, -1, the first label's.
  constexpr DType dtype_at(std::int64_t position) const {
    const auto label = static_cast<std::size_t>(std::max<std::int64_t>(position, 0));
    return find_dtype(labels[label]).value_or(DType::float32);
  }
  /// The position of the label that is a dtype; -1 if there is none.
  constexpr std::int64_t position_of(DType dtype) const {
    const auto found = std::find_if(labels.begin(), labels.end(), [&](std::string_view label) {
      return find_dtype(label) == dtype;
    });
    return found == labels.end() ? -1 : found - labels.begin();
  }

  constexpr bool operator==(const AttributeSpec&) const = default;
};

/// The size of dimension `multiple` is a multiple of that of dimension `divisor`.
struct Divisibility {
  std::string_view divisor;
  std::string_view multiple;
};

/// An expression in an input. It gives the size `unknown`, or, if that is empty, must hold.
struct Equation {
  std::uint8_t input = 0;
  std::uint8_t dimension = 0;  // of Parameter::dims
  std::string_view unknown;
};

struct Signature {
  std::string_view name;
  FixedVector<Parameter, 12> inputs;
  FixedVector<AttributeSpec, 8> attributes;
  FixedVector<Parameter, 8> outputs;
  FixedVector<TypeVariable, 3> variables;  // those of `where`
  FixedVector<Divisibility, 4> divisibilities;
  FixedVector<Term, 64> terms;          // of all expressions
  FixedVector<Equation, 16> equations;  // in the order in which they are solved
  bool restricts_values = false;  // there are offsets, or elements that must be greater than 0

  /// Whether a gradient may name the gradient of an output, or have an expression for an input: it
  /// may have a floating-point dtype.
  constexpr bool may_have_gradient(const Parameter& tensor) const {
    const ElementType& type = tensor.type;
    switch (type.kind) {
      case ElementType::Kind::variable:
        return type.index == 0 || variables[type.index - 1u].or_t ||
               variables[type.index - 1u].dtypes.has_floating();
      case ElementType::Kind::fixed:
        return type.dtypes.has_floating();
      case ElementType::Kind::input:
        return may_have_gradient(inputs[type.index]);
      default:
        return type.kind == ElementType::Kind::attribute;
    }
  }

  /// The input whose tensor is used as input i: itself, or its default input if it is absent.
  constexpr std::size_t source_of(std::size_t i, bool present) const {
    const int default_input = inputs[i].default_input();
    return present || default_input < 0 ? i : static_cast<std::size_t>(default_input);
  }

  /// An absent input i with a default number becomes a tensor of this number. Its shape is taken
  /// from the returned input, which is required and has all dimensions of input i. -1 if there is
  /// none, or if input i has a *.
  constexpr int shape_source_of(std::size_t i) const {
    for (std::size_t other = 0; other < inputs.size(); ++other) {
      if (inputs[i].has_star() || inputs[i].broadcasts || inputs[other].broadcasts) continue;
      if (!inputs[other].axis.empty()) continue;
      const bool has_all =
          std::all_of(inputs[i].dims.begin(), inputs[i].dims.end(), [&](const Dimension& dim) {
            return !dim.name.empty() && index_of(inputs[other].dims, dim.name) >= 0;
          });
      if (inputs[i].absent == Absent::number && !inputs[other].optional && has_all) {
        return static_cast<int>(other);
      }
    }
    return -1;
  }

  /// Whether all tensors are `T[*]` and required, and so have one dtype and one shape.
  constexpr bool uniform() const {
    const auto is_free = [](const Parameter& tensor) {
      return tensor.type.is_t() && tensor.leading() && tensor.dims.empty() && !tensor.optional &&
             !tensor.broadcasts;
    };
    return std::all_of(inputs.begin(), inputs.end(), is_free) &&
           std::all_of(outputs.begin(), outputs.end(), is_free);
  }

  /// The number of last dimensions of 1.
  static constexpr std::size_t last_ones(const Parameter& tensor) {
    std::size_t count = 0;
    while (count < tensor.dims.size() && (tensor.dims.end() - count - 1)->is_one()) ++count;
    return count;
  }

  /// Whether the elementwise engine can run the op: all tensors are of type T, there is one output,
  /// and each input is always there and has the output's shape, or only its last dimensions, of
  /// which the last ones may be 1.
  constexpr bool is_elementwise() const {
    const Parameter& output = outputs[0];
    return outputs.size() == 1 && output.type.is_t() &&
           std::all_of(inputs.begin(), inputs.end(), [&](const Parameter& input) {
             const bool is_row = output.leading() && output.axis.empty() && !input.has_star() &&
                                 !input.broadcasts && !input.dims.empty() &&
                                 input.dims.size() <= output.dims.size() &&
                                 std::equal(input.dims.begin(), input.dims.end() - last_ones(input),
                                            output.dims.end() - input.dims.size());
             return input.type == output.type && input.required() &&
                    (is_row || input.is_like(output));
           });
  }
};

namespace detail {

/// Words that cannot be names: keywords of Python, and values in gradients.
inline constexpr std::array<std::string_view, 37> reserved_names{
    "and",    "as",       "assert", "async",  "await",  "break",   "class",    "continue",
    "def",    "del",      "elif",   "else",   "except", "finally", "for",      "from",
    "global", "if",       "import", "in",     "is",     "lambda",  "nonlocal", "not",
    "or",     "pass",     "raise",  "return", "try",    "while",   "with",     "yield",
    "True",   "infinity", "inf",    "nan",    "none"};

class SignatureParser {
 public:
  constexpr explicit SignatureParser(std::string_view text) : text_(text), rest_(text) {}

  [[gnu::cold]] constexpr Signature parse() {
    signature_.name = name();
    expect("(");
    bool attributes = false;
    while (!accept(")")) {
      if (!signature_.inputs.empty() || attributes) expect(",");
      if (!attributes && accept("*")) {
        attributes = true;
        expect(",");
      }
      if (attributes) {
        signature_.attributes.push_back(attribute(), "signature: there are more than 8 attributes");
      } else {
        signature_.inputs.push_back(input(), "signature: there are more than 12 inputs");
      }
    }
    expect("->");
    if (accept("(")) {
      do add_output();
      while (accept(","));
      expect(")");
    } else {
      add_output();
    }
    if (accept("where")) {
      do add_variable();
      while (accept(","));
    }
    if (!rest_.empty()) fail("there is `", rest_, "` after the outputs");
    resolve_types();
    resolve_terms();
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) resolve_dims(signature_.inputs[i]);
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) resolve_dims(signature_.outputs[i]);
    find_known_sizes();
    check_inputs();
    check_divisibilities();
    for (const Parameter& input : signature_.inputs) {
      if (input.positive || input.type.is_offsets()) signature_.restricts_values = true;
    }
    for (const Parameter& output : signature_.outputs) check_output(output);
    return signature_;
  }

 private:
  /// Not constexpr: the compiler rejects a malformed signature here and shows the call.
  template <class... Text>
  [[noreturn]] void fail(const Text&... text) const {
    std::string message = "signature: ";
    (message.append(text), ...);
    const std::size_t column = text_.size() - rest_.size() + 1;
    if (!rest_.empty()) message += " (column " + std::to_string(column) + ")";
    throw std::invalid_argument(message);
  }

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
    if (!accept(token)) fail_missing("`", token, "`");
  }
  template <class... Text>
  [[noreturn]] void fail_missing(const Text&... what) const {
    if (rest_.empty()) fail(what..., " is missing at the end");
    fail(what..., " is missing before `", rest_, "`");
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
    if (length < rest_.size() && rest_[length] >= 'A' && rest_[length] <= 'Z') {
      fail_upper_case(rest_.substr(0, rest_.find_first_of(" :,[](){}*?=<>|.-`")));
    }
    if (length == 0) fail_missing("a name");
    const std::string_view result = rest_.substr(0, length);
    rest_.remove_prefix(length);
    skip_space();
    return result;
  }
  [[noreturn]] void fail_upper_case(std::string_view name) const {
    fail("a name consists of lower-case letters, digits and _; not ", name);
  }
  /// The name of the op, an input, an attribute or an output.
  constexpr std::string_view name() {
    const std::string_view result = word();
    if (is_digit(result.front())) fail("a name must not begin with a digit, as ", result, " does");
    if (std::ranges::find(reserved_names, result) != reserved_names.end()) {
      fail(result, " is a keyword of Python or of gradients; it must have another name");
    }
    if (index_of(signature_.inputs, result) >= 0 || index_of(signature_.attributes, result) >= 0 ||
        index_of(signature_.outputs, result) >= 0) {
      fail("two inputs, attributes or outputs have the name ", result);
    }
    return result;
  }
  /// A decimal number or `inf`. Up to 15 digits are exact before the one division.
  constexpr double number() {
    const double sign = accept("-") ? -1.0 : 1.0;
    if (accept("inf")) return sign * std::numeric_limits<double>::infinity();
    if (rest_.empty() || !is_digit(rest_.front())) {
      fail_missing("a number");
    }
    double digits = 0;
    double divisor = 1;
    bool fraction = false;
    for (; !rest_.empty() && (is_digit(rest_.front()) || (rest_.front() == '.' && !fraction));
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
      if (rest_.empty() || !is_digit(rest_.front())) {
        fail_missing("an exponent");
      }
      int exponent = 0;
      for (; !rest_.empty() && is_digit(rest_.front()); rest_.remove_prefix(1)) {
        exponent = std::min(exponent * 10 + (rest_.front() - '0'), 1000);  // 1e1000 is infinite
      }
      for (int i = 0; i < exponent; ++i) (negative ? divisor : digits) *= 10;
    }
    skip_space();
    const double value = sign * digits / divisor;
    if (value != value) fail("a number has too many digits");  // infinity / infinity
    return value;
  }
  /// An integer of at most 15 digits, which double and int64 represent exactly.
  constexpr double integer(std::string_view of) {
    const double value = number();
    const bool held = value > -1e15 && value < 1e15;
    if (!held || static_cast<double>(static_cast<std::int64_t>(value)) != value) {
      fail(of, " must be an integer of at most 15 digits");
    }
    return value;
  }
  constexpr Dimension dimension() {
    skip_space();
    const std::string_view begin = rest_;
    const std::size_t first = signature_.terms.size();
    sum(0);
    const std::size_t count = signature_.terms.size() - first;
    if (count > 1 || signature_.terms[first].kind == Term::Kind::elements) {
      std::string_view text = begin.substr(0, begin.size() - rest_.size());
      while (text.ends_with(' ')) text.remove_suffix(1);
      return {text, -1, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(count)};
    }
    const Term term = signature_.terms[first];
    signature_.terms.pop_back();
    if (term.kind == Term::Kind::number) return {{}, term.value};
    if (accept("divides")) {
      signature_.divisibilities.push_back({term.name, word()},
                                          "signature: more than 4 dimensions divide others");
    }
    return {term.name, -1};
  }
  constexpr void add_term(Term::Kind kind, std::string_view name = {}, std::int64_t value = 0) {
    signature_.terms.push_back({kind, name, value},
                               "signature: the sizes have more than 64 terms in all");
  }
  constexpr void sum(int depth) {
    product(depth);
    while (true) {
      if (accept("+")) {
        product(depth);
        add_term(Term::Kind::add);
      } else if (accept("-")) {
        product(depth);
        add_term(Term::Kind::subtract);
      } else {
        return;
      }
    }
  }
  constexpr void product(int depth) {
    factor(depth);
    while (true) {
      if (accept("*")) {
        factor(depth);
        add_term(Term::Kind::multiply);
      } else if (accept("//")) {
        factor(depth);
        add_term(Term::Kind::floor_divide);
      } else if (accept("/")) {
        fail("sizes are divided by a//b, rounded down, or cdiv(a, b), rounded up");
      } else {
        return;
      }
    }
  }
  constexpr void factor(int depth) {
    if (depth == 16) fail("an expression has more than 16 parentheses in each other");
    if (accept("(")) {
      sum(depth + 1);
      expect(")");
      return;
    }
    if (!rest_.empty() && is_digit(rest_.front())) {
      return add_term(Term::Kind::number, {}, static_cast<std::int64_t>(integer("a size")));
    }
    const std::string_view name = word();
    if (!accept("(")) return add_term(Term::Kind::size, name);
    if (name == "numel") {
      add_term(Term::Kind::elements, word());
    } else {
      Term::Kind kind = Term::Kind::ceil_divide;
      if (name == "min") {
        kind = Term::Kind::minimum;
      } else if (name == "max") {
        kind = Term::Kind::maximum;
      } else if (name != "cdiv") {
        fail("the functions of sizes are cdiv, min, max and numel, not ", name);
      }
      sum(depth + 1);
      expect(",");
      sum(depth + 1);
      add_term(kind);
    }
    expect(")");
  }
  /// Whether a word comes next, which is then read.
  constexpr bool accept_word(std::string_view expected) {
    const std::string_view before = rest_;
    if (!rest_.starts_with(expected)) return false;
    if (word() == expected) return true;
    rest_ = before;
    return false;
  }
  /// The position of the element whose name comes next, which is then read; else -1.
  template <class List>
  constexpr int accept_name_of(const List& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!find_dtype(list[i].name) && accept_word(list[i].name)) return static_cast<int>(i);
    }
    return -1;
  }
  /// T, a dtype, or several of them: T | f32.
  constexpr ElementType element_type(std::string_view of) {
    ElementType result;
    bool has_variable = false;
    do {
      const std::string_view name = type_name(of);
      if (name.size() == 1) {
        if (has_variable) fail(of, " must have one type variable at most");
        has_variable = true;
        result.index = static_cast<std::uint8_t>(name.front() - 'T');
      } else {
        result.dtypes.insert(*find_dtype(name));
      }
    } while (accept("|"));
    if (!has_variable) result.kind = ElementType::Kind::fixed;
    return result;
  }
  /// A dtype, or T, U, V or W.
  constexpr std::string_view type_name(std::string_view of) {
    if (!rest_.empty() && rest_.front() >= 'T' && rest_.front() <= 'W' &&
        (rest_.size() == 1 || rest_.find_first_of(" |[,") == 1)) {
      const std::string_view variable = rest_.substr(0, 1);
      rest_.remove_prefix(1);
      skip_space();
      return variable;
    }
    const std::string_view name = word();
    if (!find_dtype(name)) {
      const bool is_attribute = name == "float" || name == "int" || name == "str";
      fail("the dtype of ", of, " must be T, a dtype (bool i8 u8 i32 i64 f16 bf16 f32 f64) or ",
           "offsets(n), not ", name,
           is_attribute ? "; attributes, which have this type, follow `*, `" : "");
    }
    return name;
  }
  /// U: i32 | i64
  constexpr void add_variable() {
    TypeVariable result;
    const std::string_view name = type_variable_name(signature_.variables.size() + 1);
    if (name.empty() || !accept(name)) {
      fail("the type variables beside T are U, V and W, in this order");
    }
    expect(":");
    const ElementType type = element_type(name);
    result.or_t = type.kind == ElementType::Kind::variable;
    result.dtypes = type.dtypes;
    if (type.index > 0) fail(name, " may be T or a dtype, not another variable");
    signature_.variables.push_back(result, "");
  }
  /// The type variables of tensors must be declared, and those of outputs known.
  constexpr void resolve_types() const {
    const auto check = [&](const Parameter& tensor) {
      if (tensor.type.kind == ElementType::Kind::variable &&
          tensor.type.index > signature_.variables.size()) {
        fail(type_variable_name(tensor.type.index), ", the dtype of ", tensor.name,
             ", must be declared at the end of the line: where U: i32 | i64");
      }
    };
    std::for_each(signature_.inputs.begin(), signature_.inputs.end(), check);
    std::for_each(signature_.outputs.begin(), signature_.outputs.end(), check);
  }
  /// name: dtype[dims]
  constexpr Parameter tensor(bool is_output = false) {
    Parameter result;
    result.name = name();
    expect(":");
    result.broadcasts = accept_word("broadcast");
    if (accept_word("offsets")) {
      result.type.kind = ElementType::Kind::offsets;
      expect("(");
      result.offsets_into = word();
      expect(")");
    } else if (const int source = is_output ? accept_name_of(signature_.inputs) : -1; source >= 0) {
      const Parameter& input = signature_.inputs[static_cast<std::size_t>(source)];
      result.type = input.type;
      if (input.type.is_union()) {
        result.type = {ElementType::Kind::input, static_cast<std::uint8_t>(source), {}};
      }
      if (!rest_.starts_with("[")) {
        if (input.optional || input.broadcasts) {
          fail(input.name, ", whose dtype and shape ", result.name,
               " has, must be required and not ", "broadcast");
        }
        result.star = input.star;
        result.axis = input.axis;
        result.dims = input.dims;
        return result;
      }
    } else if (const int choice = is_output ? accept_name_of(signature_.attributes) : -1;
               choice >= 0) {
      const AttributeSpec& chooser = signature_.attributes[static_cast<std::size_t>(choice)];
      if (!chooser.is_dtype) {
        fail("the labels of ", chooser.name, ", which chooses the dtype of ", result.name,
             ", must be dtypes: f16 | bf16");
      }
      result.type = {ElementType::Kind::attribute, static_cast<std::uint8_t>(choice), {}};
    } else {
      result.type = element_type(result.name);
    }
    expect("[");
    bool first = true;
    while (!accept("]")) {
      if (!first && !rest_.empty() && rest_.find_first_of(",)") != 0) {
        fail("a dimension of ", result.name, " is a name, a number or an expression such as 2*d, ",
             "not one before `", rest_, "`");
      }
      if (!first) expect(",");
      first = false;
      if (accept("*")) {
        if (result.has_star()) fail("a tensor has one *, but ", result.name, " has more");
        result.star = static_cast<int>(result.dims.size());
      } else {
        result.dims.push_back(dimension(), "signature: a tensor has more than 8 dimensions");
        if (accept("@")) result.axis = placing_attribute(result);
      }
    }
    if (result.type.is_offsets() && (result.has_star() || result.dims.size() != 1)) {
      fail(result.name, " must have one dimension, as offsets have");
    }
    return result;
  }
  /// The attribute after @ of the last dimension of a tensor.
  constexpr std::string_view placing_attribute(const Parameter& tensor) {
    const std::string_view attribute = word();
    if (tensor.star + 1 != static_cast<int>(tensor.dims.size()) || !tensor.has_star()) {
      fail("@ ", attribute, " of ", tensor.name, " must follow the dimension after *: T[*, c @ ",
           attribute, "]");
    }
    return attribute;
  }
  constexpr void add_output() {
    signature_.outputs.push_back(tensor(true), "signature: there are more than 8 outputs");
  }
  constexpr Parameter input() {
    Parameter result = tensor();
    result.optional = accept("?");
    if (accept(">")) {
      expect("0");
      result.positive = true;
    }
    if (!result.optional || !accept("=")) return result;
    if (!rest_.empty() && is_digit(rest_.front())) {
      result.absent = Absent::number;
      const bool may_be_fraction = result.type.is_t();
      result.number = may_be_fraction ? number() : integer(result.name);
      return result;
    }
    std::string_view other = word();
    result.absent = Absent::input;
    if (accept("(")) {
      if (other != "min" && other != "max") {
        fail("the default of ", result.name, " must be an input, a number, min(input) or ",
             "max(input), not ", other);
      }
      result.absent = other == "min" ? Absent::minimum : Absent::maximum;
      other = word();
      expect(")");
    }
    result.source = index_of(signature_.inputs, other);
    if (result.source < 0) {
      fail(other, ", the default of ", result.name, ", must be an input before it");
    }
    return result;
  }
  constexpr AttributeSpec attribute() {
    AttributeSpec result;
    result.name = name();
    expect(":");
    const std::string_view type = word();
    if (accept("|")) return enumeration(result, type);
    if (type == "bool") return boolean(result);
    if (type != "int" && type != "float") {
      fail("the type of ", result.name, " must be int, float, bool or two or more labels, not ",
           type);
    }
    result.type = type == "int" ? AttributeType::integer : AttributeType::real;
    result.optional = type == "float" && accept("?");
    result.required = !result.optional && !accept("=");
    if (result.optional) return result;
    if (!result.required) {
      result.default_value = type == "int" ? integer(result.name) : number();
    }
    if (accept("in")) {
      expect("[");
      result.lowest = number();
      expect(",");
      result.highest = number();
      expect("]");
    }
    if (result.lowest > result.highest) fail("the range of ", result.name, " is empty");
    const double value = result.default_value;
    if (!result.required && (value < result.lowest || value > result.highest)) {
      fail("the default of ", result.name, " must be in its range");
    }
    return result;
  }
  /// The rest of an attribute of type bool.
  constexpr AttributeSpec boolean(AttributeSpec result) {
    result.type = AttributeType::boolean;
    result.highest = 1;
    result.lowest = 0;
    result.required = !accept("=");
    if (result.required) return result;
    const std::string_view value = word();
    if (value != "true" && value != "false") {
      fail("the default of ", result.name, " must be true or false, not ", value);
    }
    result.default_value = value == "true" ? 1 : 0;
    return result;
  }
  /// The rest of an attribute, after its first label.
  constexpr AttributeSpec enumeration(AttributeSpec result, std::string_view first) {
    result.type = AttributeType::label;
    const auto add = [&](std::string_view label) {
      if (std::ranges::find(result.labels, label) != result.labels.end()) {
        fail("the labels of ", result.name, " must differ: ", label, " stands twice");
      }
      result.labels.push_back(label, "signature: an enumeration has more than 8 labels");
    };
    add(first);
    do add(word());
    while (accept("|"));
    const auto dtypes = static_cast<std::size_t>(
        std::count_if(result.labels.begin(), result.labels.end(),
                      [](std::string_view label) { return find_dtype(label).has_value(); }));
    result.is_dtype = dtypes == result.labels.size();
    if (dtypes > 0 && !result.is_dtype) {
      fail("the labels of ", result.name, " must all be dtypes, or none of them");
    }
    result.lowest = 0;
    result.highest = static_cast<double>(result.labels.size() - 1);
    result.required = !accept("=");
    if (!result.required) {
      const auto label = std::ranges::find(result.labels, word());
      if (label == result.labels.end()) fail("the default of ", result.name, " must be a label");
      result.default_value = static_cast<double>(label - result.labels.begin());
    }
    return result;
  }

  /// Whether there is an input for which the predicate holds.
  template <class Predicate>
  constexpr bool has_input(const Predicate& predicate) const {
    return std::any_of(signature_.inputs.begin(), signature_.inputs.end(), predicate);
  }
  static constexpr bool has_dimension(const Parameter& tensor, const Dimension& dimension) {
    return std::find(tensor.dims.begin(), tensor.dims.end(), dimension) != tensor.dims.end();
  }
  /// Whether every call determines the size of this name.
  constexpr bool is_known(std::string_view size) const {
    return std::find(known_.begin(), known_.end(), size) != known_.end();
  }
  constexpr void add_known(std::string_view size) {
    if (!is_known(size)) known_.push_back(size, "signature: there are more than 64 sizes");
  }

  /// Finds the attributes and inputs that expressions name. Other names are sizes.
  constexpr void resolve_terms() {
    for (std::size_t i = 0; i < signature_.terms.size(); ++i) {
      Term& term = signature_.terms[i];
      if (term.kind == Term::Kind::elements) {
        term.value = index_of(signature_.inputs, term.name);
        if (term.value < 0 || !signature_.inputs[static_cast<std::size_t>(term.value)].required()) {
          fail("numel(", term.name, ") must be of an input that is never absent");
        }
      }
      const int attribute = index_of(signature_.attributes, term.name);
      if (term.kind != Term::Kind::size || attribute < 0) continue;
      if (signature_.attributes[static_cast<std::size_t>(attribute)].type !=
          AttributeType::integer) {
        fail(term.name, ", an attribute in a size, must be an int");
      }
      term.kind = Term::Kind::attribute;
      term.value = attribute;
    }
  }
  /// Makes an expression of an attribute that stands alone, and checks one that places a dimension.
  constexpr void resolve_dims(Parameter& tensor) {
    if (!tensor.axis.empty()) {
      const int axis = index_of(signature_.attributes, tensor.axis);
      if (axis < 0 ||
          signature_.attributes[static_cast<std::size_t>(axis)].type != AttributeType::integer) {
        fail(tensor.axis, ", which places a dimension of ", tensor.name,
             ", must be an int attribute");
      }
    }
    for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
      Dimension& dim = tensor.dims[i];
      const int attribute = index_of(signature_.attributes, dim.name);
      if (!dim.is_name() || attribute < 0) continue;
      const AttributeSpec& spec = signature_.attributes[static_cast<std::size_t>(attribute)];
      if (spec.type != AttributeType::integer || spec.lowest < 0) {
        fail(dim.name, ", a dimension of ", tensor.name,
             ", must be an integer with a range from 0 or above: int in [0, inf]");
      }
      dim.first_term = static_cast<std::uint8_t>(signature_.terms.size());
      dim.terms = 1;
      add_term(Term::Kind::attribute, dim.name, attribute);
    }
  }
  constexpr void find_known_sizes() {
    for (const Parameter& input : signature_.inputs) {
      for (const Dimension& dim : input.dims) {
        if (input.required() && !input.broadcasts && dim.is_name()) add_known(dim.name);
      }
    }
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      const Parameter& input = signature_.inputs[i];
      for (std::size_t j = 0; j < input.dims.size() && !input.broadcasts; ++j) {
        if (input.dims[j].is_expression()) add_equation(i, j);
      }
    }
  }
  constexpr void add_equation(std::size_t input, std::size_t dimension) {
    const Parameter& tensor = signature_.inputs[input];
    const Dimension& dim = tensor.dims[dimension];
    const std::string_view unknown = unknown_of(dim);
    if (!unknown.empty() && !tensor.required()) {
      fail(unknown, ", in ", dim.name, " of ", tensor.name,
           ", must be a dimension of an input that is never absent");
    }
    if (!unknown.empty()) {
      check_linear(dim, unknown);
      add_known(unknown);
    }
    signature_.equations.push_back(
        {static_cast<std::uint8_t>(input), static_cast<std::uint8_t>(dimension), unknown},
        "signature: there are more than 16 expressions in inputs");
  }
  /// The size in the expression that is not known; empty if all are.
  constexpr std::string_view unknown_of(const Dimension& dim) const {
    std::string_view unknown;
    for (std::size_t i = 0; i < dim.terms; ++i) {
      const Term& term = signature_.terms[dim.first_term + i];
      if (term.kind != Term::Kind::size || is_known(term.name) || term.name == unknown) continue;
      if (!unknown.empty()) {
        fail("the sizes ", unknown, " and ", term.name, " of ", dim.name,
             " are both unknown: one of them must stand alone in an input that is never absent");
      }
      unknown = term.name;
    }
    return unknown;
  }
  /// The expression must be the unknown size, times known factors, plus known terms.
  constexpr void check_linear(const Dimension& dim, std::string_view unknown) const {
    FixedVector<bool, 64> depends;  // whether each value on the stack depends on the unknown size
    for (std::size_t i = 0; i < dim.terms; ++i) {
      const Term& term = signature_.terms[dim.first_term + i];
      if (!term.is_operator()) {
        depends.push_back(term.kind == Term::Kind::size && term.name == unknown, "");
        continue;
      }
      const bool right = depends[depends.size() - 1];
      depends.pop_back();
      bool& left = depends[depends.size() - 1];
      const bool allowed = (term.kind == Term::Kind::add && !(left && right)) ||
                           (term.kind == Term::Kind::subtract && !right) ||
                           (term.kind == Term::Kind::multiply && !(left && right));
      if ((left || right) && !allowed) {
        fail(dim.name, " cannot be solved for ", unknown, ", which must be in it once, with known ",
             "factors and terms alone: 2*d + 1");
      }
      left = left || right;
    }
  }

  /// Whether every call determines the size of the dimension.
  constexpr bool is_bound(const Dimension& dim) const {
    if (!dim.is_expression()) return dim.is_fixed() || is_known(dim.name);
    for (std::size_t i = 0; i < dim.terms; ++i) {
      const Term& term = signature_.terms[dim.first_term + i];
      if (term.kind == Term::Kind::size && !is_known(term.name)) return false;
    }
    return true;
  }

  constexpr void check_inputs() const {
    bool optional = false;
    if (signature_.inputs.empty()) fail("there must be an input that is required");
    for (const Parameter& input : signature_.inputs) {
      if (&input == signature_.inputs.begin() && input.optional) {
        fail(input.name, ", the first input, must be required");
      }
      if (optional && !input.optional) {
        fail(input.name, ", which is required, must come before the inputs that are optional");
      }
      optional = input.optional;
      if (optional) check_optional(input);
      if (input.broadcasts) check_broadcast(input);
      if (input.type.is_offsets() && !is_bound({input.offsets_into, -1})) {
        fail(input.offsets_into, ", which ", input.name,
             " divides, must be a dimension of an input that is never absent");
      }
      if (input.type.is_offsets() && has_input([&](const Parameter& other) {
            return !other.axis.empty() &&
                   other.dims[static_cast<std::size_t>(other.star)].name == input.offsets_into;
          })) {
        fail(input.offsets_into, ", which ", input.name,
             " divides, must not be a dimension that an attribute places");
      }
    }
  }
  /// Other inputs determine the shape to which the input broadcasts.
  constexpr void check_broadcast(const Parameter& input) const {
    const bool fits = std::all_of(input.dims.begin(), input.dims.end(),
                                  [&](const Dimension& dim) { return is_bound(dim); });
    const bool has_star = has_input([](const Parameter& other) {
      return other.required() && !other.broadcasts && other.has_star();
    });
    if (!fits || (input.has_star() && !has_star) || input.positive || input.type.is_offsets()) {
      fail(input.name, ", which broadcasts, must have dimensions of inputs that are never absent, ",
           "and must be neither offsets nor > 0");
    }
  }
  constexpr void check_divisibilities() const {
    for (const Divisibility& each : signature_.divisibilities) {
      if (is_bound({each.divisor, -1}) && is_bound({each.multiple, -1})) continue;
      fail(each.divisor, " divides ", each.multiple,
           ": both must be dimensions of inputs that are never absent");
    }
  }
  constexpr void check_optional(const Parameter& input) const {
    const bool by_input = input.absent == Absent::input;
    if (input.type.is_offsets() && !by_input) {
      fail(input.name, " is optional: its default must be other offsets, offsets(n)[b]? = other");
    }
    const bool by_positive = input.absent == Absent::number && input.number > 0;
    if (input.positive && !by_input && !by_positive) {
      fail(input.name, " is optional: its default must be an input or a number greater than 0, ",
           "T[d]? > 0 = 1");
    }
    if (input.absent == Absent::number) {
      check_number(input);
    } else if (input.absent != Absent::nothing) {
      check_source(input, signature_.inputs[static_cast<std::size_t>(input.source)]);
    }
  }
  /// The default of the input is a number: required inputs must determine its shape.
  constexpr void check_number(const Parameter& input) const {
    constexpr DTypeSet dtypes = DTypeSet::of({DType::float32, DType::int32, DType::int64});
    const ElementType& type = input.type;
    const bool is_fixed = type.is_single() && dtypes.contains(type.dtypes.first());
    if (!input.is_generic() && !is_fixed) {
      fail(input.name, ", whose default is a number, must be T, f32, i32 or i64");
    }
    if (input.broadcasts) return;  // the number itself, as a scalar
    const auto is_given = [](const Parameter& other) {
      return !other.optional && !other.broadcasts && other.axis.empty();
    };
    bool has_shape = !input.dims.empty() && input.axis.empty();
    for (const Dimension& dim : input.dims) {
      has_shape = has_shape && has_input([&](const Parameter& other) {
                    return is_given(other) && has_dimension(other, dim);
                  });
    }
    if (input.has_star() && has_shape) {
      has_shape =
          has_input([&](const Parameter& other) { return is_given(other) && other.has_star(); });
    }
    if (!has_shape) {
      fail(input.name, ", whose default is a number, must have dimensions of required inputs",
           ", which no attribute places");
    }
  }
  /// The default of the input is `source`, or the minimum or maximum of its rows.
  constexpr void check_source(const Parameter& input, const Parameter& source) const {
    const bool of_rows = input.absent != Absent::input;
    const std::size_t rows = of_rows ? 1 : 0;
    bool fits = !source.optional && !source.broadcasts && !input.broadcasts &&
                source.type == input.type && source.star == input.star &&
                source.axis == input.axis && !(of_rows && input.has_star()) &&
                source.dims.size() == input.dims.size() + rows;
    for (std::size_t i = 0; fits && i < input.dims.size(); ++i) {
      fits = source.dims[i + rows].size == input.dims[i].size;
    }
    if (fits) return;
    fail(source.name, ", the default of ", input.name, ", must be required and have its ",
         of_rows ? "dtype, and one dimension before its own" : "dtype, rank and fixed sizes");
  }
  constexpr void check_output(const Parameter& output) const {
    const ElementType& type = output.type;
    const bool has_type =
        has_input([&](const Parameter& input) { return input.required() && input.type == type; });
    if (type.is_variable() && !has_type) {
      fail(output.name, " is of type ", type_variable_name(type.index),
           ", so an input that is never absent must be of this type");
    }
    if (type.kind == ElementType::Kind::input && !signature_.inputs[type.index].required()) {
      fail(signature_.inputs[type.index].name, ", whose dtype ", output.name,
           " has, must be an input that is never absent");
    }
    if (output.broadcasts || type.is_union()) {
      fail(output.name, ", an output, must have one dtype and one shape");
    }
    const bool has_star = has_input([](const Parameter& input) {
      return input.required() && !input.broadcasts && input.has_star();
    });
    if (output.has_star() && !has_star) {
      fail(output.name, " has a *, so an input that is never absent must have a *");
    }
    for (const Dimension& dim : output.dims) {
      if (is_bound(dim)) continue;
      fail(dim.name, ", a dimension of ", output.name,
           ", must be made of dimensions of inputs that are never absent, and of integer "
           "attributes; if it depends on values, return the largest size, and the number used as "
           "another output");
    }
  }

  std::string_view text_;
  std::string_view rest_;
  Signature signature_;
  FixedVector<std::string_view, 64> known_;  // the sizes that every call determines
};

}  // namespace detail

/// Parses a signature line. Throws std::invalid_argument, which in a constant expression is a
/// compile-time error; the result refers to `text`, which must outlive it.
constexpr Signature parse_signature(std::string_view text) {
  return detail::SignatureParser(text).parse();
}

struct InPlace {
  int output;
  int input;
};

/// Parses `output = input`: the output may overwrite the input. Throws std::invalid_argument if the
/// input is optional, or if they can differ in dtype or shape.
constexpr InPlace parse_in_place(const Signature& signature, std::string_view text) {
  constexpr std::string_view equals = " = ";
  const std::size_t middle = text.find(equals);
  if (middle == text.npos)
    throw std::invalid_argument("in_place must be one pair `output = input`");
  const int output = index_of(signature.outputs, text.substr(0, middle));
  const int input = index_of(signature.inputs, text.substr(middle + equals.size()));
  if (output < 0 || input < 0) throw std::invalid_argument("in_place names no output or no input");
  const Parameter& overwritten = signature.inputs[static_cast<std::size_t>(input)];
  if (overwritten.optional ||
      !overwritten.is_like(signature.outputs[static_cast<std::size_t>(output)])) {
    throw std::invalid_argument(
        "in_place: the input must be required and have the dtype and the dimensions of the output");
  }
  return {output, input};
}

/// The limits of signatures.
inline constexpr std::size_t max_inputs = decltype(Signature::inputs)::capacity();
inline constexpr std::size_t max_outputs = decltype(Signature::outputs)::capacity();
inline constexpr std::size_t max_attributes = decltype(Signature::attributes)::capacity();

}  // namespace cudarelu

// Checks the arguments of a call against the op's signature, and infers the outputs.
//
// The code is a template over the type of a size, which DimTraits describes: sizes may be numbers
// or symbols (PyTorch's SymInt, ONNX Runtime's dim_param). What symbols do not decide is accepted,
// or becomes a condition of the host.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cudarelu/op.h"

namespace cudarelu {

/// The value of an attribute of a type; of an enumeration, `value` is the position of a label.
inline Attribute to_attribute(AttributeType type, double value) {
  switch (type) {
    case AttributeType::integer:
    case AttributeType::boolean:
    case AttributeType::label:
      return static_cast<std::int64_t>(value);
    case AttributeType::real:
      break;
  }
  return value;
}

template <class Dim>
struct DimTraits {
  static bool differ(const Dim& a, const Dim& b) { return a != b; }
  static bool exceeds(const Dim& a, std::int64_t limit) { return a > limit; }
  static bool is_less(const Dim& a, std::int64_t limit) { return a < limit; }
  static bool is_one(const Dim& a) { return a == 1; }
  static bool is_multiple(const Dim& a, const Dim& of) { return of == 0 ? a == 0 : a % of == 0; }
  /// The value of an operator of an expression; nothing if it overflows, or if a divisor is less
  /// than 1.
  static std::optional<Dim> apply(Term::Kind kind, const Dim& a, const Dim& b) {
    Dim result = 0;
    switch (kind) {
      case Term::Kind::add:
        return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
      case Term::Kind::subtract:
        return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
      case Term::Kind::multiply:
        return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
      case Term::Kind::floor_divide:
      case Term::Kind::ceil_divide: {
        if (b < 1) return std::nullopt;
        const Dim rest = a % b;
        if (kind == Term::Kind::floor_divide) return a / b - (rest < 0 ? 1 : 0);
        return a / b + (rest > 0 ? 1 : 0);
      }
      case Term::Kind::minimum:
        return std::min(a, b);
      default:
        return std::max(a, b);
    }
  }
  static std::string text(const Dim& dim) { return std::to_string(dim); }
};

/// A size before the run: a number, a symbol, or unknown.
struct SymbolicSize {
  SymbolicSize() = default;
  explicit SymbolicSize(std::int64_t number) : number(std::max(number, std::int64_t{-1})) {}

  std::int64_t number = -1;  // -1: not a number
  std::string symbol;        // "": no symbol

  bool unknown() const { return number < 0 && symbol.empty(); }
};

template <>
struct DimTraits<SymbolicSize> {
  /// Only two numbers are known to differ: a symbol may have any value.
  static bool differ(const SymbolicSize& a, const SymbolicSize& b) {
    return a.number >= 0 && b.number >= 0 && a.number != b.number;
  }
  static bool exceeds(const SymbolicSize& a, std::int64_t limit) { return a.number > limit; }
  static bool is_less(const SymbolicSize&, std::int64_t) { return false; }
  static bool is_one(const SymbolicSize& a) { return a.number == 1; }
  static bool is_multiple(const SymbolicSize& a, const SymbolicSize& of) {
    return a.number < 0 || of.number < 0 ||
           DimTraits<std::int64_t>::is_multiple(a.number, of.number);
  }
  /// A number, or the text of the expression as a symbol; unknown if it is negative, which only
  /// values between others are. Never nothing: the run checks numbers.
  static std::optional<SymbolicSize> apply(Term::Kind kind, const SymbolicSize& a,
                                           const SymbolicSize& b);
  static std::string text(const SymbolicSize& size) {
    if (size.number >= 0) return std::to_string(size.number);
    return size.unknown() ? "?" : size.symbol;
  }
};

/// The value of an integer attribute that is not known before the run, of symbolic sizes.
inline constexpr std::int64_t unknown_integer = std::numeric_limits<std::int64_t>::min();

/// An input before the run.
struct SymbolicTensor {
  bool present = false;
  DType dtype{};
  std::vector<SymbolicSize> shape;
};

/// At most max_rank sizes.
template <class Dim>
class Shape {
 public:
  void assign(std::span<const Dim> dims) {
    rank_ = 0;
    for (const Dim& dim : dims) push_back(dim);
  }
  void push_back(Dim dim) { dims_[rank_++] = std::move(dim); }
  std::span<const Dim> span() const { return {dims_.data(), rank_}; }

 private:
  std::array<Dim, max_rank> dims_;
  std::size_t rank_ = 0;
};

template <class Dim>
struct OutputType {
  DType dtype{};
  Shape<Dim> shape;
};

/// The names of the dtypes of a set: "float32, float64".
std::string names_of(DTypeSet dtypes);

/// The dtypes that an input may have.
DTypeSet dtypes_of(const Op& op, const Parameter& input);

/// The type of an attribute: "a floating-point number", "an integer", "none (0) or tanh (1)".
std::string kind_of(const AttributeSpec& spec);

/// The name of a type in Python: "float", "int", "bool", or "str" for a label.
const char* python_type(AttributeType type);

/// Sets `value` to the position of a label in an enumeration.
Status find_label(const Op& op, const AttributeSpec& spec, std::string_view label,
                  Attribute& value);

/// Returns the error for an input whose dtype the op does not support.
[[gnu::cold]] Status unknown_dtype(const Op& op, std::size_t input, std::string_view dtype);

/// Whether the value is in the range of the attribute.
bool in_range(const AttributeSpec& spec, double value);

/// The range of the attribute: "in [0, inf]", "none (0) or tanh (1)".
std::string range_of(const AttributeSpec& spec);

/// Checks the type and the range of each attribute.
Status check_attributes(const Op& op, std::span<const Attribute> attributes);

/// The value of an attribute that the caller leaves out.
inline Attribute default_of(const AttributeSpec& spec) {
  if (spec.optional) return std::numeric_limits<double>::quiet_NaN();
  return to_attribute(spec.type, spec.default_value);
}

/// The same as text: a label, an integer, or the shortest number that reads as the same one, such
/// as "1e-05", "inf", and "nan" for an absent one.
std::string default_text_of(const AttributeSpec& spec);

namespace detail {

template <class Dim>
std::string text_of(std::span<const Dim> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += DimTraits<Dim>::text(shape[i]);
  }
  return text + "]";
}

std::string text_of(const Parameter& parameter);
[[gnu::cold]] Status error(Status::Code code, const Op& op, const std::string& what);

/// The dtypes of the type variables in one call.
class Types {
 public:
  explicit Types(const Op& op) : op_(op) {}

  /// Checks the dtype of an input that has a tensor, and sets its type variable.
  Status bind(std::size_t index, DType dtype) {
    const Parameter& input = op_.signature.inputs[index];
    const ElementType& type = input.type;
    if (type.kind != ElementType::Kind::variable) {
      const bool fits = type.is_offsets() ? dtype == DType::int32 : type.dtypes.contains(dtype);
      return fits ? Status() : unknown_dtype(op_, index, name_of(dtype));
    }
    if (type.dtypes.contains(dtype)) return {};
    if (type.index == 0 ? !op_.spec.dtypes.contains(dtype)
                        : !dtypes_of(op_, input).contains(dtype)) {
      return unknown_dtype(op_, index, name_of(dtype));
    }
    const Parameter*& source = sources_[type.index];
    if (source == nullptr) {
      source = &input;
      dtypes_[type.index] = dtype;
    } else if (dtype != dtypes_[type.index]) {
      return differ(input, dtype, *source, dtypes_[type.index]);
    }
    return {};
  }

  /// Checks the variables that may be T, after all inputs.
  Status check_variables() const {
    for (std::size_t i = 0; i < op_.signature.variables.size(); ++i) {
      const TypeVariable& variable = op_.signature.variables[i];
      const bool is_own = sources_[i + 1] == nullptr || variable.dtypes.contains(dtypes_[i + 1]);
      if (is_own || sources_[0] == nullptr || dtypes_[i + 1] == dtypes_[0]) continue;
      return differ(*sources_[i + 1], dtypes_[i + 1], *sources_[0], dtypes_[0]);
    }
    return {};
  }

  /// The dtype of an output that does not have that of an input.
  DType dtype_of(const Parameter& output, std::span<const Attribute> attributes) const {
    if (output.type.kind != ElementType::Kind::attribute) return output.dtype(dtypes_);
    const AttributeSpec& choice = op_.signature.attributes[output.type.index];
    return choice.dtype_at(std::get<std::int64_t>(attributes[output.type.index]));
  }

 private:
  Status differ(const Parameter& a, DType a_dtype, const Parameter& b, DType b_dtype) const;

  const Op& op_;
  std::array<const Parameter*, std::tuple_size_v<VariableDTypes>> sources_{};
  VariableDTypes dtypes_{};
};

/// The sizes of the dimensions in one call, and the input from which each was read.
template <class Dim>
class Binding {
 public:
  using Traits = DimTraits<Dim>;

  Binding(const Op& op, std::span<const Attribute> attributes) : op_(op), attributes_(attributes) {}

  /// Reads the sizes that stand alone.
  Status bind(const Parameter& input, std::span<const Dim> shape) {
    const std::size_t fixed = input.dims.size();
    if (shape.size() > max_rank) {
      return invalid(std::string(input.name) + " has " + std::to_string(shape.size()) +
                     " dimensions; at most " + std::to_string(max_rank) + " are supported");
    }
    if ((input.has_star() ? shape.size() < fixed : shape.size() != fixed)) {
      return invalid(std::string(input.name) + " must be " + text_of(input) + ", not " +
                     text_of(shape));
    }
    if (!input.axis.empty()) {
      if (Status status = bind_placed(input, shape); !status.ok()) return status;
    } else if (input.has_star()) {
      const auto first = static_cast<std::size_t>(input.star);
      Status status = bind_star(input, shape.subspan(first, shape.size() - fixed));
      if (!status.ok()) return status;
    }
    for (std::size_t i = 0; i < fixed; ++i) {
      if (input.dims[i].is_expression()) continue;
      Status status = bind_dimension(input, input.dims[i], size_in(input, i, shape));
      if (!status.ok()) return status;
    }
    return {};
  }

  /// Solves the expressions of the inputs, or checks them.
  template <class View>
  [[gnu::noinline]] Status solve(std::span<const View> inputs) {
    solved_.reserve(op_.signature.equations.size());
    for (const Equation& equation : op_.signature.equations) {
      const Parameter& input = op_.signature.inputs[equation.input];
      const View& view =
          inputs[op_.signature.source_of(equation.input, inputs[equation.input].present)];
      if (!view.present) continue;
      const Dimension& dim = input.dims[equation.dimension];
      const Dim& size = size_in(input, equation.dimension, std::span<const Dim>(view.shape));
      const bool known = equation.unknown.empty() || size_of(equation.unknown) != nullptr;
      Status status = known ? check(inputs, input, dim, size)
                            : solve(inputs, input, dim, size, equation.unknown);
      if (!status.ok()) return status;
    }
    return {};
  }

  /// Appends the sizes of a tensor whose names are bound.
  template <class View, class Sizes>
  Status evaluate(std::span<const View> inputs, const Parameter& tensor, Sizes& sizes) const {
    if (Status status = check_axis(tensor, star_.size() + 1); !status.ok()) return status;
    const bool unknown = has_unknown_axis(tensor);
    const std::size_t index =
        tensor.axis.empty() ? star_.size() : index_in_group(tensor, star_.size() + 1);
    for (std::size_t i = 0; i <= tensor.dims.size(); ++i) {
      const bool here = static_cast<int>(i) == tensor.star;
      if (here) {
        for (const Dim& size : star_.first(index)) sizes.push_back(unknown ? Dim() : size);
      }
      if (i == tensor.dims.size()) break;
      Dim size;
      Status status = evaluate(inputs, tensor, tensor.dims[i], size);
      if (!status.ok()) return status;
      sizes.push_back(here && unknown ? Dim() : std::move(size));
      if (here) {
        for (const Dim& each : star_.subspan(index)) sizes.push_back(unknown ? Dim() : each);
      }
    }
    return {};
  }

  /// The same as bind() for an input that broadcasts, after the others.
  template <class View>
  Status bind_broadcast(std::span<const View> inputs, const Parameter& input,
                        std::span<const Dim> shape) const {
    std::vector<Dim> sizes;  // may be more than max_rank
    if (Status status = evaluate(inputs, input, sizes); !status.ok()) return status;
    bool fits = shape.size() <= sizes.size();
    for (std::size_t i = 0; fits && i < shape.size(); ++i) {
      fits = Traits::is_one(shape[i]) ||
             !Traits::differ(shape[i], sizes[sizes.size() - shape.size() + i]);
    }
    if (fits) return {};
    return invalid(std::string(input.name) + " is " + text_of(shape) +
                   ", which does not broadcast to " + text_of(input) + ", here " +
                   text_of(std::span<const Dim>(sizes)));
  }

  Status check_divisibilities() const {
    for (const Divisibility& each : op_.signature.divisibilities) {
      const Dim& divisor = *size_of(each.divisor);
      const Dim& multiple = *size_of(each.multiple);
      if (Traits::is_multiple(multiple, divisor)) continue;
      return invalid("dimension " + std::string(each.multiple) + " is " + Traits::text(multiple) +
                     ", which is not a multiple of dimension " + std::string(each.divisor) + ", " +
                     Traits::text(divisor));
    }
    return {};
  }

  /// The sizes for *.
  std::span<const Dim> star() const { return star_; }
  const Dim* size_of(std::string_view name) const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (bound_[i].name == name) return bound_[i].size;
    }
    return nullptr;
  }

 private:
  struct Bound {
    std::string_view name;
    const Dim* size;
    const Parameter* source;
  };

  /// constant + factor * the unknown size.
  struct Linear {
    Dim constant;
    Dim factor;
    bool depends = false;  // on the unknown size; else `factor` has no meaning
  };

  Status invalid(const std::string& what) const {
    return error(Status::Code::invalid_argument, op_, what);
  }

  Status bind_star(const Parameter& input, std::span<const Dim> dims) {
    if (star_source_ == nullptr) {
      star_ = dims;
      star_source_ = &input;
      return {};
    }
    bool same = dims.size() == star_.size();
    for (std::size_t i = 0; same && i < dims.size(); ++i) {
      same = !Traits::differ(dims[i], star_[i]);
    }
    if (same) return {};
    return invalid("dimensions * are " + text_of(star_) + " in " + std::string(star_source_->name) +
                   " but " + text_of(dims) + " in " + std::string(input.name));
  }

  /// The same for an input of which an attribute places a dimension.
  [[gnu::noinline]] Status bind_placed(const Parameter& input, std::span<const Dim> shape) {
    const std::size_t rank = shape.size() - input.dims.size() + 1;  // of * and the dimension
    if (Status status = check_axis(input, rank); !status.ok()) return status;
    const auto group = shape.subspan(static_cast<std::size_t>(input.star), rank);
    const std::size_t index = index_in_group(input, rank);
    std::vector<Dim> sizes(group.begin(), group.end());
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(index));
    if (has_unknown_axis(input)) sizes.assign(rank - 1, Dim());
    if (star_source_ != nullptr) return bind_star(input, sizes);
    placed_ = std::move(sizes);
    return bind_star(input, placed_);
  }

  bool has_unknown_axis(const Parameter& tensor) const {
    if constexpr (std::is_same_v<Dim, SymbolicSize>) {
      return !tensor.axis.empty() && axis_of(tensor) == unknown_integer;
    }
    return false;
  }

  /// The attribute that places a dimension.
  std::int64_t axis_of(const Parameter& tensor) const {
    const int index = index_of(op_.signature.attributes, tensor.axis);
    return std::get<std::int64_t>(attributes_[static_cast<std::size_t>(index)]);
  }

  /// The position among * and the dimension, which are `rank` together. The axis is in its range.
  std::size_t index_in_group(const Parameter& tensor, std::size_t rank) const {
    const std::int64_t axis = has_unknown_axis(tensor) ? 0 : axis_of(tensor);
    return static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis);
  }

  /// The size of dims[i] in a tensor of this shape.
  const Dim& size_in(const Parameter& tensor, std::size_t i, std::span<const Dim> shape) const {
    const bool placed = !tensor.axis.empty() && static_cast<int>(i) == tensor.star;
    if (!placed) return shape[tensor.axis_of(i, shape.size())];
    if constexpr (std::is_same_v<Dim, SymbolicSize>) {
      static const SymbolicSize unknown;
      if (has_unknown_axis(tensor)) return unknown;
    }
    return shape[i + index_in_group(tensor, shape.size() - tensor.dims.size() + 1)];
  }

  Status check_axis(const Parameter& tensor, std::size_t rank) const {
    if (tensor.axis.empty() || has_unknown_axis(tensor)) return {};
    const std::int64_t axis = axis_of(tensor);
    const auto end = static_cast<std::int64_t>(rank);
    if (axis >= -end && axis < end) return {};
    return invalid(std::string(tensor.axis) + " is " + std::to_string(axis) +
                   ", but must be from " + std::to_string(-end) + " to " + std::to_string(end - 1) +
                   ": it counts " + std::to_string(end) +
                   (rank == 1 ? " dimension of " : " dimensions of ") + std::string(tensor.name) +
                   ", " + text_of(tensor));
  }

  /// Sets the size of a dimension whose names are bound.
  template <class View>
  Status evaluate(std::span<const View> inputs, const Parameter& tensor, const Dimension& dim,
                  Dim& size) const {
    if (dim.is_expression()) return evaluate_expression(inputs, tensor, dim, size);
    size = dim.is_fixed() ? Dim(dim.size) : *size_of(dim.name);
    return {};
  }

  Status bind_dimension(const Parameter& input, const Dimension& dim, const Dim& size) {
    if (dim.name.empty()) {
      if (!Traits::differ(size, Dim(dim.size))) return {};
      return invalid(std::string(input.name) + " must be " + text_of(input) + ": the size " +
                     std::to_string(dim.size) + " is " + Traits::text(size));
    }
    for (std::size_t i = 0; i < count_; ++i) {
      if (bound_[i].name != dim.name) continue;
      if (!Traits::differ(size, *bound_[i].size)) return {};
      return invalid("dimension " + std::string(dim.name) + " is " + Traits::text(*bound_[i].size) +
                     " in " + std::string(bound_[i].source->name) + " but " + Traits::text(size) +
                     " in " + std::string(input.name));
    }
    bound_[count_++] = {dim.name, &size, &input};
    return {};
  }

  template <class View>
  [[gnu::noinline]] Status evaluate_expression(std::span<const View> inputs,
                                               const Parameter& tensor, const Dimension& dim,
                                               Dim& size) const {
    Linear value;
    if (Status status = evaluate(inputs, tensor, dim, {}, value); !status.ok()) return status;
    if (Traits::is_less(value.constant, 0)) {
      return invalid(title_of(tensor, dim) + " would be " + Traits::text(value.constant) +
                     values_of(dim));
    }
    size = std::move(value.constant);
    return {};
  }

  template <class View>
  Status check(std::span<const View> inputs, const Parameter& input, const Dimension& dim,
               const Dim& size) const {
    Dim expected;
    if (Status status = evaluate(inputs, input, dim, expected); !status.ok()) return status;
    if (!Traits::differ(size, expected)) return {};
    return invalid(title_of(input, dim) + " is " + Traits::text(size) + ", but must be " +
                   Traits::text(expected) + values_of(dim));
  }

  template <class View>
  Status solve(std::span<const View> inputs, const Parameter& input, const Dimension& dim,
               const Dim& size, std::string_view unknown) {
    Linear value;
    if (Status status = evaluate(inputs, input, dim, unknown, value); !status.ok()) return status;
    const std::optional<Dim> rest = Traits::apply(Term::Kind::subtract, size, value.constant);
    std::optional<Dim> solution;
    if (rest && !Traits::is_less(*rest, 0) && !Traits::is_less(value.factor, 1) &&
        Traits::is_multiple(*rest, value.factor)) {
      solution = Traits::apply(Term::Kind::floor_divide, *rest, value.factor);
    }
    if (!solution) {
      const bool has_terms = Traits::differ(value.constant, Dim(0));
      const std::string less =
          has_terms ? Traits::text(size) + " - " + Traits::text(value.constant) + " " : "";
      return invalid(title_of(input, dim) + " is " + Traits::text(size) + ", but " + less +
                     "must be a multiple of " + Traits::text(value.factor) + values_of(dim));
    }
    bound_[count_++] = {unknown, &solved_.emplace_back(*std::move(solution)), &input};
    return {};
  }

  template <class View>
  Status evaluate(std::span<const View> inputs, const Parameter& tensor, const Dimension& dim,
                  std::string_view unknown, Linear& result) const {
    std::vector<Linear> stack;
    for (std::size_t i = 0; i < dim.terms; ++i) {
      const Term& term = op_.signature.terms[dim.first_term + i];
      bool fits = true;
      if (term.is_operator()) {
        const Linear right = std::move(stack.back());
        stack.pop_back();
        fits = apply(term.kind, stack.back(), right);
      } else if (term.kind == Term::Kind::size && term.name == unknown) {
        stack.push_back({Dim(0), Dim(1), true});
      } else {
        stack.push_back({Dim(), Dim()});
        fits = read(inputs, term, stack.back().constant);
      }
      if (!fits) {
        const bool divides =
            term.kind == Term::Kind::floor_divide || term.kind == Term::Kind::ceil_divide;
        return invalid(title_of(tensor, dim) +
                       (divides ? " divides by less than 1" : " is too large") + values_of(dim));
      }
    }
    result = std::move(stack.back());
    return {};
  }

  /// The value of a term that is no operator. Returns false if it is too large.
  template <class View>
  bool read(std::span<const View> inputs, const Term& term, Dim& value) const {
    const auto index = static_cast<std::size_t>(term.value);
    if (term.kind == Term::Kind::number) {
      value = Dim(term.value);
    } else if (term.kind == Term::Kind::size) {
      value = *size_of(term.name);
    } else if (term.kind == Term::Kind::attribute) {
      value = Dim(std::get<std::int64_t>(attributes_[index]));
    } else {
      value = Dim(1);
      for (const Dim& size : inputs[op_.signature.source_of(index, inputs[index].present)].shape) {
        std::optional<Dim> product = Traits::apply(Term::Kind::multiply, value, size);
        if (!product) return false;
        value = *std::move(product);
      }
    }
    return true;
  }

  /// a = a <operator> b. Returns false if that is too large or divides by less than 1.
  static bool apply(Term::Kind kind, Linear& a, const Linear& b) {
    const bool scales = kind == Term::Kind::multiply && (a.depends || b.depends);
    std::optional<Dim> constant = Traits::apply(kind, a.constant, b.constant);
    std::optional<Dim> factor = a.depends ? a.factor : b.factor;
    if (scales) factor = Traits::apply(kind, *factor, a.depends ? b.constant : a.constant);
    if (!constant || !factor) return false;
    a = {*std::move(constant), *std::move(factor), a.depends || b.depends};
    return true;
  }

  /// "dimension 2*d of x".
  static std::string title_of(const Parameter& tensor, const Dimension& dim) {
    return "dimension " + std::string(dim.name) + " of " + std::string(tensor.name);
  }

  /// The values of the names in an expression that are known: ": h is 4, k is 5".
  std::string values_of(const Dimension& dim) const {
    std::string text;
    for (std::size_t i = 0; i < dim.terms; ++i) {
      const Term& term = op_.signature.terms[dim.first_term + i];
      const Dim* const size = size_of(term.name);
      std::string value;
      if (term.kind == Term::Kind::size && size != nullptr) {
        value = Traits::text(*size);
      } else if (term.kind == Term::Kind::attribute) {
        const auto& attribute = attributes_[static_cast<std::size_t>(term.value)];
        const auto integer = std::get<std::int64_t>(attribute);
        if (integer != unknown_integer) value = std::to_string(integer);
      }
      const std::string entry = std::string(term.name) + " is " + value;
      if (value.empty() || text.find(" " + entry) != text.npos) continue;
      text += (text.empty() ? ": " : ", ") + entry;
    }
    return text;
  }

  static constexpr std::size_t most = max_inputs * decltype(Parameter::dims)::capacity();

  const Op& op_;
  std::span<const Attribute> attributes_;
  std::array<Bound, most> bound_;  // clearing it would take longest
  std::size_t count_ = 0;
  std::span<const Dim> star_;
  std::vector<Dim> placed_;  // what star_ refers to if no tensor has the sizes side by side
  const Parameter* star_source_ = nullptr;
  std::vector<Dim> solved_;  // by expressions; never reallocated, since bound_ refers to them
};

}  // namespace detail

/// Checks the dtypes and shapes of a call whose attributes have been checked, and sets the dtype
/// and the shape of every output. `inputs` holds one View for each input of the signature; a View
/// has the members `present`, `dtype` and `shape` (a contiguous range of Dim). The message of an
/// error names the op and the argument.
template <class Dim, class View>
Status infer_tensors(const Op& op, std::span<const View> inputs,
                     std::span<const Attribute> attributes, std::span<OutputType<Dim>> outputs) {
  using Code = Status::Code;
  const Signature& signature = op.signature;
  detail::Types types(op);
  detail::Binding<Dim> binding(op, attributes);
  bool broadcasts = false;
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    const Parameter& input = signature.inputs[i];
    const View& view = inputs[signature.source_of(i, inputs[i].present)];
    if (!view.present) {
      if (input.optional) continue;
      return detail::error(Code::invalid_argument, op, std::string(input.name) + " is missing");
    }
    if (Status status = types.bind(i, view.dtype); !status.ok()) return status;
    if (input.broadcasts) {
      broadcasts = true;
      continue;
    }
    Status status = binding.bind(input, std::span<const Dim>(view.shape));
    if (!status.ok()) return status;
  }
  if (!signature.variables.empty()) {
    if (Status status = types.check_variables(); !status.ok()) return status;
  }
  if (!signature.equations.empty()) {
    if (Status status = binding.solve(inputs); !status.ok()) return status;
  }
  if (broadcasts) {
    for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
      const Parameter& input = signature.inputs[i];
      if (!input.broadcasts || !inputs[i].present) continue;
      Status status = binding.bind_broadcast(inputs, input, std::span<const Dim>(inputs[i].shape));
      if (!status.ok()) return status;
    }
  }
  if (!signature.divisibilities.empty()) {
    if (Status status = binding.check_divisibilities(); !status.ok()) return status;
  }

  for (const Parameter& input : signature.inputs) {
    if (!input.type.is_offsets()) continue;
    const Dim* size = binding.size_of(input.offsets_into);
    constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
    if (size != nullptr && DimTraits<Dim>::exceeds(*size, limit)) {
      return detail::error(Code::invalid_argument, op,
                           "dimension " + std::string(input.offsets_into) + " is " +
                               DimTraits<Dim>::text(*size) + ", but " + std::string(input.name) +
                               " is int32: at most " + std::to_string(limit) + " is supported");
    }
  }

  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    const Parameter& output = signature.outputs[i];
    outputs[i].dtype =
        output.type.kind == ElementType::Kind::input
            ? inputs[signature.source_of(output.type.index, inputs[output.type.index].present)]
                  .dtype
            : types.dtype_of(output, attributes);
    const std::size_t rank = (output.has_star() ? binding.star().size() : 0) + output.dims.size();
    if (rank > max_rank) {
      return detail::error(Code::invalid_argument, op,
                           std::string(output.name) + " would have " + std::to_string(rank) +
                               " dimensions; at most " + std::to_string(max_rank) +
                               " are supported");
    }
    outputs[i].shape.assign({});
    if (Status status = binding.evaluate(inputs, output, outputs[i].shape); !status.ok()) {
      return status;
    }
  }
  return {};
}

/// As infer_tensors(), but checks the attributes first.
template <class Dim, class View>
Status infer(const Op& op, std::span<const View> inputs, std::span<const Attribute> attributes,
             std::span<OutputType<Dim>> outputs) {
  if (Status status = check_attributes(op, attributes); !status.ok()) return status;
  return infer_tensors(op, inputs, attributes, outputs);
}

}  // namespace cudarelu

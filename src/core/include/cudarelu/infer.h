// Checks the arguments of a call against the op's signature, and infers the outputs.
//
// The code is a template over the type of a size, which DimTraits describes: sizes may be numbers
// or symbols (PyTorch's SymInt, ONNX Runtime's dim_param). What symbols do not decide is accepted,
// or becomes a condition of the host.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
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
  static bool is_one(const Dim& a) { return a == 1; }
  static bool is_multiple(const Dim& a, const Dim& of) { return of == 0 ? a == 0 : a % of == 0; }
  static std::string text(const Dim& dim) { return std::to_string(dim); }
};

/// A size before the run: a number, a symbol, or unknown.
struct SymbolicSize {
  SymbolicSize() = default;
  explicit SymbolicSize(std::int64_t number) : number(number) {}

  std::int64_t number = -1;  // -1: not a number
  const char* symbol = "";   // owned by the host; "": no symbol

  bool unknown() const { return number < 0 && *symbol == '\0'; }
};

template <>
struct DimTraits<SymbolicSize> {
  /// Only two numbers are known to differ: a symbol may have any value.
  static bool differ(const SymbolicSize& a, const SymbolicSize& b) {
    return a.number >= 0 && b.number >= 0 && a.number != b.number;
  }
  static bool exceeds(const SymbolicSize& a, std::int64_t limit) { return a.number > limit; }
  static bool is_one(const SymbolicSize& a) { return a.number == 1; }
  static bool is_multiple(const SymbolicSize& a, const SymbolicSize& of) {
    return a.number < 0 || of.number < 0 ||
           DimTraits<std::int64_t>::is_multiple(a.number, of.number);
  }
  static std::string text(const SymbolicSize& size) {
    if (size.number >= 0) return std::to_string(size.number);
    return size.unknown() ? "?" : size.symbol;
  }
};

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

/// The sizes of the dimensions in one call, and the input from which each was read.
template <class Dim>
class Binding {
 public:
  Status bind(const Op& op, const Parameter& input, std::span<const Dim> shape) {
    const std::size_t fixed = input.dims.size();
    if (shape.size() > max_rank) {
      return error(Status::Code::invalid_argument, op,
                   std::string(input.name) + " has " + std::to_string(shape.size()) +
                       " dimensions; at most " + std::to_string(max_rank) + " are supported");
    }
    if ((input.leading ? shape.size() < fixed : shape.size() != fixed)) {
      return error(
          Status::Code::invalid_argument, op,
          std::string(input.name) + " must be " + text_of(input) + ", not " + text_of(shape));
    }
    const std::size_t lead = shape.size() - fixed;
    if (input.leading) {
      if (Status status = bind_leading(op, input, shape.first(lead)); !status.ok()) return status;
    }
    for (std::size_t i = 0; i < fixed; ++i) {
      Status status = bind_dimension(op, input, input.dims[i], shape[lead + i]);
      if (!status.ok()) return status;
    }
    return {};
  }

  /// The same for an input that broadcasts, after the others.
  Status bind_broadcast(const Op& op, const Parameter& input, std::span<const Dim> shape) const {
    const std::size_t rank = input.dims.size() + (input.leading ? leading_.size() : 0);
    bool fits = shape.size() <= rank;
    for (std::size_t i = rank - shape.size(); fits && i < rank; ++i) {
      const std::size_t lead = rank - input.dims.size();
      const Dim& size = shape[i - (rank - shape.size())];
      if (DimTraits<Dim>::is_one(size)) continue;
      if (i < lead) {
        fits = !DimTraits<Dim>::differ(size, leading_[i]);
      } else if (const Dimension& dim = input.dims[i - lead]; dim.name.empty()) {
        fits = !DimTraits<Dim>::differ(size, Dim(dim.size));
      } else {
        fits = !DimTraits<Dim>::differ(size, *size_of(dim.name));
      }
    }
    if (fits) return {};
    std::string full = input.leading ? text_of(leading_) : "[";
    if (input.leading) full.pop_back();
    for (const Dimension& dim : input.dims) {
      if (full.size() > 1) full += ", ";
      full +=
          dim.name.empty() ? std::to_string(dim.size) : DimTraits<Dim>::text(*size_of(dim.name));
    }
    return error(Status::Code::invalid_argument, op,
                 std::string(input.name) + " is " + text_of(shape) +
                     ", which does not broadcast to " + text_of(input) + ", here " + full + "]");
  }

  Status check_divisibilities(const Op& op) const {
    for (const Divisibility& each : op.signature.divisibilities) {
      const Dim& divisor = *size_of(each.divisor);
      const Dim& multiple = *size_of(each.multiple);
      if (DimTraits<Dim>::is_multiple(multiple, divisor)) continue;
      return error(Status::Code::invalid_argument, op,
                   "dimension " + std::string(each.multiple) + " is " +
                       DimTraits<Dim>::text(multiple) + ", which is not a multiple of dimension " +
                       std::string(each.divisor) + ", " + DimTraits<Dim>::text(divisor));
    }
    return {};
  }

  std::span<const Dim> leading() const { return leading_; }
  const Dim* size_of(std::string_view name) const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (bound_[i].dimension->name == name) return bound_[i].size;
    }
    return nullptr;
  }

 private:
  struct Bound {
    const Dimension* dimension;
    const Dim* size;
    const Parameter* source;
  };

  Status bind_leading(const Op& op, const Parameter& input, std::span<const Dim> dims) {
    if (leading_source_ == nullptr) {
      leading_ = dims;
      leading_source_ = &input;
      return {};
    }
    bool same = dims.size() == leading_.size();
    for (std::size_t i = 0; same && i < dims.size(); ++i) {
      same = !DimTraits<Dim>::differ(dims[i], leading_[i]);
    }
    if (same) return {};
    return error(Status::Code::invalid_argument, op,
                 "dimensions * are " + text_of(leading_) + " in " +
                     std::string(leading_source_->name) + " but " + text_of(dims) + " in " +
                     std::string(input.name));
  }

  Status bind_dimension(const Op& op, const Parameter& input, const Dimension& dim,
                        const Dim& size) {
    if (dim.name.empty()) {
      if (!DimTraits<Dim>::differ(size, Dim(dim.size))) return {};
      return error(Status::Code::invalid_argument, op,
                   std::string(input.name) + " must be " + text_of(input) + ": the size " +
                       std::to_string(dim.size) + " is " + DimTraits<Dim>::text(size));
    }
    for (std::size_t i = 0; i < count_; ++i) {
      if (bound_[i].dimension->name != dim.name) continue;
      if (!DimTraits<Dim>::differ(size, *bound_[i].size)) return {};
      return error(Status::Code::invalid_argument, op,
                   "dimension " + std::string(dim.name) + " is " +
                       DimTraits<Dim>::text(*bound_[i].size) + " in " +
                       std::string(bound_[i].source->name) + " but " + DimTraits<Dim>::text(size) +
                       " in " + std::string(input.name));
    }
    bound_[count_++] = {&dim, &size, &input};
    return {};
  }

  static constexpr std::size_t most = max_inputs * decltype(Parameter::dims)::capacity();

  std::array<Bound, most> bound_;  // clearing it would take longest
  std::size_t count_ = 0;
  std::span<const Dim> leading_;
  const Parameter* leading_source_ = nullptr;
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
  const Parameter* typed = nullptr;  // the input that determines T
  DType variable{};
  detail::Binding<Dim> binding;
  bool broadcasts = false;
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    const Parameter& input = signature.inputs[i];
    const View& view = inputs[signature.source_of(i, inputs[i].present)];
    if (!view.present) {
      if (input.optional) continue;
      return detail::error(Code::invalid_argument, op, std::string(input.name) + " is missing");
    }
    if (input.kind == ElementKind::variable_or_bool && view.dtype == DType::boolean) {
      // As it is.
    } else if (!input.is_generic()) {
      if (view.dtype != input.dtype(variable)) {
        return unknown_dtype(op, i, name_of(view.dtype));
      }
    } else if (!op.spec.dtypes.contains(view.dtype)) {
      return unknown_dtype(op, i, name_of(view.dtype));
    } else if (typed == nullptr) {
      typed = &input;
      variable = view.dtype;
    } else if (view.dtype != variable) {
      return detail::error(Code::unsupported_dtype, op,
                           std::string(input.name) + " is " + std::string(name_of(view.dtype)) +
                               " but " + std::string(typed->name) + " is " +
                               std::string(name_of(variable)));
    }
    if (input.broadcasts) {
      broadcasts = true;
      continue;
    }
    Status status = binding.bind(op, input, std::span<const Dim>(view.shape));
    if (!status.ok()) return status;
  }
  if (broadcasts) {
    for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
      const Parameter& input = signature.inputs[i];
      if (!input.broadcasts || !inputs[i].present) continue;
      Status status = binding.bind_broadcast(op, input, std::span<const Dim>(inputs[i].shape));
      if (!status.ok()) return status;
    }
  }
  if (!signature.divisibilities.empty()) {
    if (Status status = binding.check_divisibilities(op); !status.ok()) return status;
  }

  for (const Parameter& input : signature.inputs) {
    if (input.kind != ElementKind::offsets) continue;
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
    outputs[i].dtype = output.dtype(variable);
    const auto leading = output.leading ? binding.leading() : std::span<const Dim>();
    const std::size_t rank = leading.size() + output.dims.size();
    if (rank > max_rank) {
      return detail::error(Code::invalid_argument, op,
                           std::string(output.name) + " would have " + std::to_string(rank) +
                               " dimensions; at most " + std::to_string(max_rank) +
                               " are supported");
    }
    outputs[i].shape.assign(leading);
    for (const Dimension& dim : output.dims) {
      if (dim.name.empty()) {
        outputs[i].shape.push_back(Dim(dim.size));
      } else if (const Dim* size = binding.size_of(dim.name)) {
        outputs[i].shape.push_back(*size);
      } else {
        const auto attribute = static_cast<std::size_t>(index_of(signature.attributes, dim.name));
        outputs[i].shape.push_back(Dim(std::get<std::int64_t>(attributes[attribute])));
      }
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

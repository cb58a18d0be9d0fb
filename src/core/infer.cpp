#include "cudarelu/infer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace cudarelu {
namespace {

/// The shortest number that reads as the same one, but all digits of an integer below 2^53.
std::string text_of(double value) {
  std::array<char, 32> text{};
  const bool whole = std::abs(value) <= 0x1p53 && std::trunc(value) == value;
  const auto [end, error] =
      whole ? std::to_chars(text.begin(), text.end(), value, std::chars_format::fixed)
            : std::to_chars(text.begin(), text.end(), value);
  return {text.data(), end};
}

}  // namespace

namespace detail {

std::string text_of(const Parameter& parameter) {
  std::string text = "[";
  const auto append = [&](const std::string& dim) { text += (text.size() > 1 ? ", " : "") + dim; };
  for (std::size_t i = 0; i <= parameter.dims.size(); ++i) {
    const bool here = static_cast<int>(i) == parameter.star;
    if (here) append("*");
    if (i == parameter.dims.size()) break;
    const Dimension& dim = parameter.dims[i];
    append(dim.is_fixed() ? std::to_string(dim.size) : std::string(dim.name));
    if (here && !parameter.axis.empty()) text.append(" @ ").append(parameter.axis);
  }
  return text + "]";
}

Status error(Status::Code code, const Op& op, const std::string& what) {
  return {code, std::string(op.name) + ": " + what};
}

Status Types::differ(const Parameter& a, DType a_dtype, const Parameter& b, DType b_dtype) const {
  return error(Status::Code::unsupported_dtype, op_,
               std::string(a.name) + " is " + std::string(name_of(a_dtype)) + " but " +
                   std::string(b.name) + " is " + std::string(name_of(b_dtype)));
}

}  // namespace detail

std::optional<SymbolicSize> DimTraits<SymbolicSize>::apply(Term::Kind kind, const SymbolicSize& a,
                                                           const SymbolicSize& b) {
  using enum Term::Kind;
  if (a.unknown() || b.unknown()) return SymbolicSize();
  if (a.number >= 0 && b.number >= 0) {
    return SymbolicSize(DimTraits<std::int64_t>::apply(kind, a.number, b.number).value_or(-1));
  }
  const bool is_neutral = (kind == multiply || kind == floor_divide || kind == ceil_divide)
                              ? b.number == 1
                              : (kind == add || kind == subtract) && b.number == 0;
  if (is_neutral) return a;
  if ((kind == multiply && a.number == 1) || (kind == add && a.number == 0)) return b;
  // In parentheses, so that equal texts mean equal sizes.
  const auto operand = [](const SymbolicSize& size) {
    const bool is_word = size.symbol.find_first_of(" ,") == std::string::npos;
    return is_word ? text(size) : "(" + size.symbol + ")";
  };
  SymbolicSize result;
  const std::string name(operator_name(kind));
  result.symbol = kind < ceil_divide ? operand(a) + " " + name + " " + operand(b)
                                     : name + "(" + text(a) + ", " + text(b) + ")";
  return result;
}

std::string names_of(DTypeSet dtypes) {
  std::string names;
  for (const DType dtype : all_dtypes) {
    if (!dtypes.contains(dtype)) continue;
    if (!names.empty()) names += ", ";
    names += name_of(dtype);
  }
  return names;
}

DTypeSet dtypes_of(const Op& op, const Parameter& input) {
  const ElementType& type = input.type;
  if (type.is_offsets()) return DTypeSet::of({DType::int32});
  DTypeSet dtypes = type.dtypes;
  if (type.kind != ElementType::Kind::variable) return dtypes;
  if (type.index > 0) {
    const TypeVariable& variable = op.signature.variables[type.index - 1u];
    dtypes.bits |= variable.dtypes.bits;
    if (!variable.or_t) return dtypes;
  }
  dtypes.bits |= op.spec.dtypes.bits;
  return dtypes;
}

std::string kind_of(const AttributeSpec& spec) {
  switch (spec.type) {
    case AttributeType::real:
      return spec.optional ? "a floating-point number or none" : "a floating-point number";
    case AttributeType::integer:
      return "an integer";
    case AttributeType::boolean:
      return "false (0) or true (1)";
    case AttributeType::label:
      break;
  }
  std::string text;
  for (std::size_t i = 0; i < spec.labels.size(); ++i) {
    if (i > 0) text += i + 1 < spec.labels.size() ? ", " : " or ";
    text.append(spec.labels[i]).append(" (").append(std::to_string(i)).append(")");
  }
  return text;
}

const char* python_type(AttributeType type) {
  switch (type) {
    case AttributeType::real:
      return "float";
    case AttributeType::integer:
      return "int";
    case AttributeType::boolean:
      return "bool";
    case AttributeType::label:
      break;
  }
  return "str";
}

Status unknown_dtype(const Op& op, std::size_t input, std::string_view dtype) {
  const Parameter& parameter = op.signature.inputs[input];
  std::string what(parameter.name);
  const DTypeSet dtypes = dtypes_of(op, parameter);
  if (dtypes.size() == 1 && !parameter.is_generic()) {
    what.append(" must be ").append(names_of(dtypes)).append(", not ").append(dtype);
  } else {
    what.append(" is ").append(dtype).append("; supported dtypes: ").append(names_of(dtypes));
  }
  return detail::error(Status::Code::unsupported_dtype, op, what);
}

Status find_label(const Op& op, const AttributeSpec& spec, std::string_view label,
                  Attribute& value) {
  const auto found = std::ranges::find(spec.labels, label);
  if (found == spec.labels.end()) {
    return detail::error(
        Status::Code::invalid_argument, op,
        std::string(spec.name) + " must be " + kind_of(spec) + ", not " + std::string(label));
  }
  value = std::int64_t{found - spec.labels.begin()};
  return {};
}

bool in_range(const AttributeSpec& spec, double value) {
  // A NaN is in no range, but only a range that is declared excludes it.
  const bool bounded = spec.lowest != -std::numeric_limits<double>::infinity() ||
                       spec.highest != std::numeric_limits<double>::infinity();
  return !bounded || (value >= spec.lowest && value <= spec.highest);
}

std::string range_of(const AttributeSpec& spec) {
  if (spec.type == AttributeType::label || spec.type == AttributeType::boolean) {
    return kind_of(spec);
  }
  return "in [" + text_of(spec.lowest) + ", " + text_of(spec.highest) + "]";
}

std::string default_text_of(const AttributeSpec& spec) {
  std::array<char, 32> text{};
  const Attribute value = default_of(spec);
  if (const auto* const real = std::get_if<double>(&value)) {
    return {text.data(), std::to_chars(text.begin(), text.end(), *real).ptr};
  }
  const auto integer = std::get<std::int64_t>(value);
  if (spec.type == AttributeType::label) {
    return std::string(spec.labels[static_cast<std::size_t>(integer)]);
  }
  return {text.data(), std::to_chars(text.begin(), text.end(), integer).ptr};
}

Status check_attributes(const Op& op, std::span<const Attribute> attributes) {
  const auto& specs = op.signature.attributes;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const AttributeSpec& spec = specs[i];
    const bool integer = std::holds_alternative<std::int64_t>(attributes[i]);
    if (attributes[i].index() != to_attribute(spec.type, 0).index()) {
      return detail::error(Status::Code::invalid_argument, op,
                           std::string(spec.name) + " must be " + kind_of(spec));
    }
    const double value = integer ? static_cast<double>(std::get<std::int64_t>(attributes[i]))
                                 : std::get<double>(attributes[i]);
    if (!in_range(spec, value)) {
      return detail::error(
          Status::Code::invalid_argument, op,
          std::string(spec.name) + " must be " + range_of(spec) + ", not " + text_of(value));
    }
  }
  return {};
}

}  // namespace cudarelu

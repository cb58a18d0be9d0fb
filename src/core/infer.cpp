#include "cudarelu/infer.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <sstream>

namespace cudarelu {
namespace detail {

std::string text_of(const Parameter& parameter) {
  std::string text = parameter.leading ? "[*" : "[";
  for (const Dimension& dim : parameter.dims) {
    if (text.size() > 1) text += ", ";
    text += dim.name.empty() ? std::to_string(dim.size) : std::string(dim.name);
  }
  return text + "]";
}

Status error(Status::Code code, const Op& op, const std::string& what) {
  return {code, std::string(op.name) + ": " + what};
}

}  // namespace detail

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
  if (!input.is_generic()) return DTypeSet::of({input.dtype({})});
  DTypeSet dtypes = op.spec.dtypes;
  if (input.kind == ElementKind::variable_or_bool) {
    dtypes.bits |= DTypeSet::of({DType::boolean}).bits;
  }
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
  std::ostringstream text;
  text << "in [" << spec.lowest << ", " << spec.highest << "]";
  return text.str();
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
      std::ostringstream message;
      message << spec.name << " must be " << range_of(spec) << ", not " << value;
      return detail::error(Status::Code::invalid_argument, op, message.str());
    }
  }
  return {};
}

}  // namespace cudarelu

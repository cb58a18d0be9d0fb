#include "op_description.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "api.h"
#include "python_arguments.h"

namespace nb = nanobind;

namespace cudarelu::binding {
namespace {

nb::object optional_name(std::string_view name) {
  return name.empty() ? nb::none() : nb::object(to_str(name));
}

template <class List, class F>
nb::tuple tuple_of(const List& list, const F& f) {
  nb::list result;
  for (const auto& element : list) result.append(f(element));
  return nb::tuple(result);
}

/// A number, a name, or the text and the terms of an expression: numbers, names and operators.
nb::object describe(const Signature& signature, const Dimension& dim) {
  if (dim.is_fixed()) return nb::int_(dim.size);
  if (dim.is_name()) return to_str(dim.name);
  nb::list terms;
  for (std::size_t i = 0; i < dim.terms; ++i) {
    const Term& term = signature.terms[dim.first_term + i];
    if (term.kind == Term::Kind::number) {
      terms.append(term.value);
    } else if (term.is_operator()) {
      terms.append(to_str(operator_name(term.kind)));
    } else if (term.kind == Term::Kind::elements) {
      terms.append(nb::make_tuple("numel", to_str(term.name)));
    } else {
      terms.append(nb::make_tuple("name", to_str(term.name)));
    }
  }
  return nb::make_tuple(to_str(dim.name), nb::tuple(terms));
}

nb::list names_of_each(DTypeSet dtypes) {
  nb::list names;
  for (const DType dtype : all_dtypes) {
    if (dtypes.contains(dtype)) names.append(to_str(name_of(dtype)));
  }
  return names;
}

nb::dict describe(const Signature& signature, const Parameter& parameter) {
  nb::list dims;
  for (const Dimension& dim : parameter.dims) dims.append(describe(signature, dim));
  if (parameter.has_star()) dims.insert(parameter.star, "*");
  nb::dict result;
  result["name"] = to_str(parameter.name);
  const ElementType& type = parameter.type;
  const bool is_variable = type.kind == ElementType::Kind::variable;
  const bool is_input = type.kind == ElementType::Kind::input;
  const bool is_attribute = type.kind == ElementType::Kind::attribute;
  nb::list dtypes = names_of_each(type.dtypes);
  if (type.is_offsets()) dtypes.append(to_str(name_of(DType::int32)));
  result["variable"] =
      is_variable ? nb::object(to_str(type_variable_name(type.index))) : nb::none();
  result["dtypes"] = nb::tuple(dtypes);
  result["dtype_of"] = is_input       ? nb::object(to_str(signature.inputs[type.index].name))
                       : is_attribute ? nb::object(to_str(signature.attributes[type.index].name))
                                      : nb::none();
  result["dims"] = nb::tuple(dims);
  result["axis"] = optional_name(parameter.axis);
  result["broadcasts"] = parameter.broadcasts;
  result["optional"] = parameter.optional;
  const auto source = [&] {
    return to_str(signature.inputs[static_cast<std::size_t>(parameter.source)].name);
  };
  using enum Absent;
  const bool extreme = parameter.absent == minimum || parameter.absent == maximum;
  result["default_input"] = parameter.absent == input ? nb::object(source()) : nb::none();
  result["number"] =
      parameter.absent == number ? nb::object(nb::float_(parameter.number)) : nb::none();
  result["extreme"] =
      extreme ? nb::object(nb::make_tuple(parameter.absent == minimum ? "min" : "max", source()))
              : nb::none();
  result["positive"] = parameter.positive;
  result["offsets_into"] = optional_name(parameter.offsets_into);
  return result;
}

nb::dict describe(const AttributeSpec& attribute) {
  const bool labelled = attribute.type == AttributeType::label;
  // None for an infinite number: a range that is open at that end.
  const auto number = [&](double value) -> nb::object {
    if (std::isinf(value)) return nb::none();
    if (labelled) return to_str(attribute.labels[static_cast<std::size_t>(value)]);
    if (attribute.type == AttributeType::boolean) return nb::bool_(value != 0);
    return attribute.type == AttributeType::integer
               ? nb::object(nb::int_(static_cast<std::int64_t>(value)))
               : nb::object(nb::float_(value));
  };
  nb::dict result;
  result["name"] = to_str(attribute.name);
  result["type"] = python_type(attribute.type);
  result["labels"] = tuple_of(attribute.labels, to_str);
  // In the order of the labels; none if they are no dtypes.
  result["dtypes"] = nb::tuple();
  if (attribute.is_dtype) {
    result["dtypes"] = tuple_of(attribute.labels, [](std::string_view label) {
      return to_str(name_of(*find_dtype(label)));
    });
  }
  result["required"] = attribute.required;
  const bool has_range = !labelled && attribute.type != AttributeType::boolean;
  const bool has_default = !attribute.required && !attribute.optional;
  result["default"] = has_default ? number(attribute.default_value) : nb::none();
  result["lowest"] = has_range ? number(attribute.lowest) : nb::none();
  result["highest"] = has_range ? number(attribute.highest) : nb::none();
  return result;
}

nb::tuple describe(const Expression& expression) {
  constexpr std::array kinds{"input", "output", "output_gradient", "attribute", "number", "call",
                             "sum",   "none"};
  return nb::make_tuple(
      kinds[static_cast<std::size_t>(expression.kind)], expression.index, expression.number,
      expression.op == nullptr ? nb::none() : nb::object(qualified_name(*expression.op)),
      expression.output,
      tuple_of(expression.arguments, [](const Expression& each) { return describe(each); }),
      to_str(expression.text));
}

}  // namespace

nb::str namespace_of(const Op& op) { return to_str(op.module->name); }

nb::str qualified_name(const Op& op) { return to_str(op.qualified_name()); }

nb::dict describe_gradient(const Op& op) {
  const Op* const form = training_form_of(op);
  nb::dict result;
  result["training_form"] = form == nullptr ? nb::none() : nb::object(qualified_name(*form));
  result["terms"] = tuple_of(gradient_of(form == nullptr ? op : *form), [](const Gradient& each) {
    return nb::make_tuple(each.input, describe(each.value));
  });
  return result;
}

nb::dict describe_module(const Module& module) {
  nb::dict result;
  result["name"] = to_str(module.name);
  result["path"] = module.path.c_str();
  result["onnx_domain"] = to_str(module.onnx_domain);
  result["onnx_version"] = module.onnx_version;
  result["definition_opset"] = module.definition_opset;
  result["built_for"] = to_str(module.built_for);
  return result;
}

nb::dict describe(const Signature& signature) {
  const auto parameter = [&](const Parameter& each) { return describe(signature, each); };
  nb::dict result;
  result["name"] = to_str(signature.name);
  result["inputs"] = tuple_of(signature.inputs, parameter);
  result["attributes"] =
      tuple_of(signature.attributes, [](const AttributeSpec& each) { return describe(each); });
  nb::list variables;
  for (std::size_t i = 0; i < signature.variables.size(); ++i) {
    nb::list dtypes = names_of_each(signature.variables[i].dtypes);
    if (signature.variables[i].or_t) dtypes.insert(0, "T");
    variables.append(nb::make_tuple(to_str(type_variable_name(i + 1)), nb::tuple(dtypes)));
  }
  result["variables"] = nb::tuple(variables);
  result["divisibilities"] = tuple_of(signature.divisibilities, [](const Divisibility& each) {
    return nb::make_tuple(to_str(each.divisor), to_str(each.multiple));
  });
  result["outputs"] = tuple_of(signature.outputs, parameter);
  return result;
}

nb::dict describe(const Op& op) {
  const Signature& signature = op.signature;
  nb::dict onnx;
  onnx["domain"] = to_str(op.module->onnx_domain);
  onnx["op_type"] = op.onnx_type.c_str();
  onnx["alias"] = op.spec.onnx_alias.domain.empty()
                      ? nb::none()
                      : nb::object(nb::make_tuple(to_str(op.spec.onnx_alias.domain),
                                                  to_str(op.spec.onnx_alias.op_type)));
  nb::list alias_inputs;
  if (!op.spec.onnx_alias.domain.empty()) {
    for (const auto& [is_attribute, index] : op.alias_inputs) {
      alias_inputs.append(
          to_str(is_attribute ? signature.attributes[index].name : signature.inputs[index].name));
    }
  }
  onnx["alias_inputs"] = nb::tuple(alias_inputs);
  nb::dict result = describe(signature);
  result["namespace"] = namespace_of(op);
  result["signature"] = to_str(op.spec.signature);
  result["summary"] = to_str(op.spec.summary);
  result["elementwise"] = op.elementwise;
  result["product"] = op.uses_gemm;
  result["dtypes"] = nb::tuple(names_of_each(op.spec.dtypes));
  nb::list devices;
  if (op.cpu != nullptr) devices.append("cpu");
  if (op.cuda != nullptr) devices.append("cuda");
  result["devices"] = nb::tuple(devices);
  result["onnx"] = onnx;
  result["definition"] = to_str(op.spec.definition);
  result["equivalent_forms"] = to_str(op.spec.equivalent_forms);
  const bool has_none = !advice_without_gradient(op).empty();
  result["gradient"] = has_none ? nb::str("") : to_str(op.spec.gradient);
  nb::list gradient_ops;
  for (const auto& [input, value] : gradient_of(op)) {
    const std::span terms = value.kind == Expression::Kind::sum
                                ? std::span<const Expression>(value.arguments)
                                : std::span<const Expression>(&value, 1);
    for (const Expression& term : terms) {
      if (term.op == nullptr) continue;
      const Parameter& parameter = signature.inputs[static_cast<std::size_t>(input)];
      gradient_ops.append(nb::make_tuple(to_str(parameter.name), qualified_name(*term.op)));
    }
  }
  result["gradient_ops"] = nb::tuple(gradient_ops);
  constexpr std::array autocasts{"promote", "float32", "lower"};
  result["autocast"] = autocasts[static_cast<std::size_t>(op.spec.autocast)];
  result["in_place"] = to_str(op.spec.in_place);
  return result;
}

}  // namespace cudarelu::binding

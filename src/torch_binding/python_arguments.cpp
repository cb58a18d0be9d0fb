#include "python_arguments.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "api.h"
#include "cudarelu/infer.h"

namespace nb = nanobind;

namespace cudarelu::binding {
namespace {

[[noreturn]] void type_error(const Op& op, const std::string& what) {
  throw nb::type_error((std::string(op.name) + ": " + what).c_str());
}

[[noreturn]] void refuse_type(const Op& op, const AttributeSpec& spec, nb::handle value) {
  const std::string article = spec.type == AttributeType::integer ? "an " : "a ";
  type_error(op, std::string(spec.name) + " must be " + article + python_type(spec.type) +
                     ", not " + Py_TYPE(value.ptr())->tp_name);
}

/// Raises the error of a failed conversion to a number.
[[noreturn]] void raise_conversion(const Op& op, const AttributeSpec& spec, nb::handle value) {
  const bool is_number = PyErr_ExceptionMatches(PyExc_TypeError) == 0;
  if (is_number && PyErr_ExceptionMatches(PyExc_OverflowError) == 0) throw nb::python_error();
  PyErr_Clear();
  if (!is_number) refuse_type(op, spec, value);  // for example a complex number
  const std::string message = std::string(op.name) + ": " + std::string(spec.name);
  throw nb::value_error((message + " is out of range").c_str());
}

/// Returns a str as a C string, or its repr() if it contains NUL or is not valid UTF-8.
std::string text_of(nb::handle value) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text != nullptr && std::strlen(text) == static_cast<std::size_t>(size)) return text;
  PyErr_Clear();
  return nb::repr(value).c_str();
}

Attribute attribute_of(const Op& op, const AttributeSpec& spec, nb::handle value) {
  if (spec.type == AttributeType::label) {
    if (!nb::isinstance<nb::str>(value)) refuse_type(op, spec, value);
    Attribute position;
    const Status status = find_label(op, spec, text_of(value), position);
    if (!status.ok()) throw nb::value_error(status.message().c_str());
    return position;
  }
  if (spec.optional && value.is_none()) return default_of(spec);
  if (spec.type == AttributeType::boolean) {
    if (!nb::isinstance<nb::bool_>(value)) refuse_type(op, spec, value);
    return std::int64_t{value.is(Py_True)};
  }
  // Accepts numbers with __index__ or __float__, but not bool, nor tensors or arrays of one
  // element.
  if (!nb::isinstance<nb::bool_>(value) && !nb::hasattr(value, "__dlpack__")) {
    if (spec.type == AttributeType::integer && PyIndex_Check(value.ptr()) != 0) {
      const long long number = PyLong_AsLongLong(value.ptr());
      if (number == -1 && PyErr_Occurred() != nullptr) raise_conversion(op, spec, value);
      return static_cast<std::int64_t>(number);
    }
    if (spec.type == AttributeType::real && PyNumber_Check(value.ptr()) != 0) {
      const double number = PyFloat_AsDouble(value.ptr());
      if (number == -1 && PyErr_Occurred() != nullptr) raise_conversion(op, spec, value);
      return number;
    }
  }
  refuse_type(op, spec, value);
}

/// "x and beta", the arguments of an op.
std::string names_of(const Signature& signature) {
  std::vector<std::string_view> names;
  for (const Parameter& input : signature.inputs) names.push_back(input.name);
  for (const AttributeSpec& attribute : signature.attributes) names.push_back(attribute.name);
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : " and ";
    text += names[i];
  }
  return text;
}

void refuse_unknown(const Op& op, const PythonCall& call) {
  for (Py_ssize_t i = 0; i < call.named(); ++i) {
    const std::string name = nb::str(nb::handle(PyTuple_GET_ITEM(call.names, i))).c_str();
    if (index_of(op.signature.inputs, name) < 0 && index_of(op.signature.attributes, name) < 0) {
      type_error(op, "has no argument " + name + "; it has " + names_of(op.signature));
    }
  }
}

}  // namespace

Arguments parse_arguments(const Op& op, const PythonCall& call) {
  const Signature& signature = op.signature;
  const auto positional = static_cast<std::size_t>(call.positional);
  if (positional > signature.inputs.size()) {
    const std::size_t inputs = signature.inputs.size();
    type_error(op, std::to_string(positional) + " arguments by position, but there " +
                       (inputs == 1 ? "is 1 input" : "are " + std::to_string(inputs) + " inputs") +
                       "; attributes are given by name");
  }
  Py_ssize_t used = 0;
  const auto named_value = [&](std::string_view name) -> nb::handle {
    for (Py_ssize_t i = 0; i < call.named(); ++i) {
      Py_ssize_t size = 0;
      const char* key = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(call.names, i), &size);
      if (key == nullptr) throw nb::python_error();
      if (std::string_view(key, static_cast<std::size_t>(size)) != name) continue;
      ++used;
      return call.values[call.positional + i];
    }
    return {};
  };
  Arguments arguments;
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    const Parameter& input = signature.inputs[i];
    nb::handle value = named_value(input.name);
    if (i < positional) {
      if (value.is_valid()) type_error(op, std::string(input.name) + " is given twice");
      value = call.values[i];
    }
    if (value.is_none()) value = {};
    if (!value.is_valid() && !input.optional) {
      refuse_unknown(op, call);
      type_error(op, std::string(input.name) + " is missing");
    }
    arguments.inputs.push_back(value);
  }
  for (const AttributeSpec& spec : signature.attributes) {
    const nb::handle value = named_value(spec.name);
    if (value.is_valid()) {
      arguments.attributes.push_back(attribute_of(op, spec, value));
    } else if (!spec.required) {
      arguments.attributes.push_back(default_of(spec));
    } else {
      refuse_unknown(op, call);
      type_error(op, std::string(spec.name) + " is missing");
    }
  }
  if (used != call.named()) refuse_unknown(op, call);
  return arguments;
}

nb::object result_of(c10::SmallVector<nb::object, 4> outputs) {
  if (outputs.size() == 1) return std::move(outputs[0]);
  nb::list list;
  for (nb::object& output : outputs) list.append(std::move(output));
  return nb::tuple(list);
}

}  // namespace cudarelu::binding

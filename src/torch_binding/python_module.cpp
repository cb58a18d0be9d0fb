// cudarelu._C: the table of ops, and the functions of the ops.

#include <ATen/PythonTorchFunctionTLS.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <exception>
#include <new>
#include <span>
#include <string>

#include "api.h"
#include "python_arguments.h"

namespace nb = nanobind;

namespace cudarelu::binding {
namespace {

/// Whether a call takes longer than to give up the GIL and to take it again.
bool is_long(Inputs inputs) {
  constexpr std::int64_t many = 16384;
  return std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor* input) {
    return input != nullptr && (!input->is_cpu() || input->numel() > many);
  });
}

bool run_plain(const Op& op, Inputs inputs, const Attributes& attributes, Tensors& outputs) {
  // In anomaly mode torch makes nodes under a lock of its own, and takes the GIL there.
  const bool takes_gil = torch::autograd::AnomalyMode::is_enabled();
  if (!takes_gil && !is_long(inputs)) return call_plain(op, inputs, attributes, outputs);
  // Of our own: without the GIL, another thread may put other tensors into Python's objects.
  Tensors held;
  held.reserve(inputs.size());
  InputPointers pointers;
  for (const at::Tensor* input : inputs) {
    pointers.push_back(input != nullptr ? &held.emplace_back(*input) : nullptr);
  }
  const nb::gil_scoped_release released;
  return call_plain(op, pointers, attributes, outputs);
}

/// False: a Python error is set.
bool run(const Op& op, Inputs inputs, const Attributes& attributes, Tensors& outputs) {
  // Outside of torch's handlers, one of which is for warnings and takes as long as an allocation.
  std::exception_ptr error;
  try {
    if (run_plain(op, inputs, attributes, outputs)) return true;
  } catch (...) {
    error = std::current_exception();
  }
  HANDLE_TH_ERRORS
  if (error != nullptr) std::rethrow_exception(error);
  torch::jit::Stack stack = stack_of(op, inputs, attributes);
  const nb::gil_scoped_release released;
  outputs = dispatch(op, std::move(stack));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

nb::object call_on_tensors(const Op& op, const Arguments& arguments) {
  InputPointers inputs;
  for (const nb::handle input : arguments.inputs) {
    inputs.push_back(input.is_valid() ? &THPVariable_Unpack(input.ptr()) : nullptr);
  }
  Tensors outputs;
  if (!run(op, inputs, arguments.attributes, outputs)) throw nb::python_error();
  c10::SmallVector<nb::object, 4> results;
  for (at::Tensor& output : outputs) {
    results.push_back(nb::steal(THPVariable_Wrap(std::move(output))));
  }
  return result_of(std::move(results));
}

/// A subclass, a mode or a tracer may have its own view of the call, which is torch's to ask for.
nb::object call_through_torch(const Op& op, const PythonCall& call) {
  const nb::object ops = nb::module_::import_("torch").attr("ops").attr("cudarelu");
  const nb::object function = ops.attr(nb::str(op.name.data(), op.name.size()));
  const auto positional = static_cast<std::size_t>(call.positional);
  nb::object result =
      nb::steal(PyObject_Vectorcall(function.ptr(), call.values, positional, call.names));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

bool has_torch_function(nb::handle input) {
  return THPVariable_Check(input.ptr()) || nb::hasattr(input.type(), "__torch_function__");
}

nb::str text(std::string_view view) { return nb::str(view.data(), view.size()); }

/// What is neither is for Python: arrays of other libraries, or the TypeError for what is none.
nb::object call_in_python(const Op& op, const Arguments& arguments) {
  nb::list inputs;
  for (const nb::handle input : arguments.inputs) {
    inputs.append(input.is_valid() ? input : nb::handle(Py_None));
  }
  nb::dict attributes;
  for (std::size_t i = 0; i < arguments.attributes.size(); ++i) {
    const AttributeSpec& spec = op.signature.attributes[i];
    const Attribute& value = arguments.attributes[i];
    attributes[text(spec.name)] =
        spec.labels.empty() ? std::visit([](auto number) { return nb::cast(number); }, value)
                            : nb::object(text(label_of(spec, value)));
  }
  const nb::object call = nb::module_::import_("cudarelu._arrays").attr("call");
  return call(text(op.name), inputs, attributes);
}

/// What the function of an op does.
nb::object call(const Op& op, const PythonCall& python_call) {
  const Arguments arguments = parse_arguments(op, python_call);
  const auto all = [&](const auto& is_such) {
    return std::all_of(arguments.inputs.begin(), arguments.inputs.end(),
                       [&](nb::handle input) { return !input.is_valid() || is_such(input); });
  };
  if (all([](nb::handle input) { return THPVariable_CheckExact(input.ptr()); }) &&
      !at::impl::torch_function_mode_enabled()) {
    return call_on_tensors(op, arguments);
  }
  if (all(has_torch_function)) return call_through_torch(op, python_call);
  return all(is_array) ? call_on_arrays(op, arguments) : call_in_python(op, arguments);
}

/// The function of an op, as Python calls it: a built-in one, since nanobind's would gather the
/// arguments in a tuple and a dictionary, which takes longer than a small kernel.
PyObject* function_of_op(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                         PyObject* names) noexcept {
  try {
    const Op* op = *static_cast<const Op**>(PyModule_GetState(self));
    return call(*op, {values, positional, names}).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const nb::builtin_exception& error) {
    PyObject* type = error.type() == nb::exception_type::type_error    ? PyExc_TypeError
                     : error.type() == nb::exception_type::value_error ? PyExc_ValueError
                                                                       : PyExc_RuntimeError;
    PyErr_SetString(type, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

/// Makes the function of an op. `documentation` begins with the signature, as built-in functions
/// have it. What the function is bound to is a module, whose state is the op: Python pickles such
/// functions by name.
nb::object make_function(std::string name, std::string documentation) {
  const std::span<const Op> ops = registered_ops();
  const auto op = std::ranges::find(ops, name, &Op::name);
  if (op == ops.end()) throw nb::value_error(("no op has the name " + name).c_str());
  struct Definition {  // Python keeps its address
    std::string name;
    std::string documentation;
    PyMethodDef method;
  };
  static auto& definitions = *new std::deque<Definition>;
  Definition& definition =
      definitions.emplace_back(std::move(name), std::move(documentation), PyMethodDef{});
  // By way of void (*)(): Python casts it back to what the flags say.
  auto* const function =
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function_of_op));
  definition.method = {definition.name.c_str(), function, METH_FASTCALL | METH_KEYWORDS,
                       definition.documentation.c_str()};
  static PyModuleDef bound{PyModuleDef_HEAD_INIT,
                           "cudarelu",
                           nullptr,
                           sizeof(const Op*),
                           nullptr,
                           nullptr,
                           nullptr,
                           nullptr,
                           nullptr};
  const nb::object self = nb::steal(PyModule_Create(&bound));
  if (!self.is_valid()) throw nb::python_error();
  *static_cast<const Op**>(PyModule_GetState(self.ptr())) = &*op;
  const nb::str module("cudarelu");
  return nb::steal(PyCFunction_NewEx(&definition.method, self.ptr(), module.ptr()));
}

nb::object optional_name(std::string_view name) {
  return name.empty() ? nb::none() : nb::object(text(name));
}

template <class List, class F>
nb::tuple tuple_of(const List& list, const F& f) {
  nb::list result;
  for (const auto& element : list) result.append(f(element));
  return nb::tuple(result);
}

nb::dict describe(const Signature& signature, const Parameter& parameter) {
  nb::list dims;
  if (parameter.leading) dims.append("*");
  for (const Dimension& dim : parameter.dims) {
    if (dim.name.empty()) {
      dims.append(dim.size);
    } else {
      dims.append(text(dim.name));
    }
  }
  nb::dict result;
  result["name"] = text(parameter.name);
  result["dtype"] = parameter.kind == ElementKind::type_variable
                        ? nb::str("T")
                        : text(name_of(parameter.dtype({})));
  result["dims"] = nb::tuple(dims);
  result["optional"] = parameter.optional;
  const auto source = [&] {
    return text(signature.inputs[static_cast<std::size_t>(parameter.source)].name);
  };
  using enum Absent;
  const bool extreme = parameter.absent == minimum || parameter.absent == maximum;
  result["stand_in"] = parameter.absent == input ? nb::object(source()) : nb::none();
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
  const bool labelled = !attribute.labels.empty();
  // None: an attribute without a default, or a range that is open at that end.
  const auto number = [&](double value) -> nb::object {
    if (std::isinf(value)) return nb::none();
    if (labelled) return text(attribute.labels[static_cast<std::size_t>(value)]);
    return attribute.integer ? nb::object(nb::int_(static_cast<std::int64_t>(value)))
                             : nb::object(nb::float_(value));
  };
  nb::dict result;
  result["name"] = text(attribute.name);
  result["type"] = labelled ? "str" : attribute.integer ? "int" : "float";
  result["labels"] = tuple_of(attribute.labels, text);
  result["required"] = attribute.required;
  result["default"] = attribute.required ? nb::none() : number(attribute.default_value);
  result["lowest"] = labelled ? nb::none() : number(attribute.lowest);
  result["highest"] = labelled ? nb::none() : number(attribute.highest);
  return result;
}

nb::dict describe(const Op& op) {
  const Signature& signature = op.signature;
  const auto parameter = [&](const Parameter& each) { return describe(signature, each); };
  nb::list dtypes;
  for (const DType dtype : all_dtypes) {
    if (op.spec.dtypes.contains(dtype)) dtypes.append(text(name_of(dtype)));
  }
  nb::dict onnx;
  onnx["domain"] = text(onnx_domain);
  onnx["op_type"] = op.onnx_type.c_str();
  onnx["alias"] = op.spec.onnx_alias.domain.empty()
                      ? nb::none()
                      : nb::object(nb::make_tuple(text(op.spec.onnx_alias.domain),
                                                  text(op.spec.onnx_alias.op_type)));
  nb::dict result;
  result["name"] = text(op.name);
  result["signature"] = text(op.spec.signature);
  result["summary"] = text(op.spec.summary);
  result["inputs"] = tuple_of(signature.inputs, parameter);
  result["attributes"] =
      tuple_of(signature.attributes, [](const AttributeSpec& each) { return describe(each); });
  result["outputs"] = tuple_of(signature.outputs, parameter);
  result["elementwise"] = op.elementwise;
  result["dtypes"] = nb::tuple(dtypes);
  result["onnx"] = onnx;
  result["definition"] = text(op.spec.definition);
  result["written_out"] = text(op.spec.written_out);
  result["gradient"] = text(op.spec.gradient);
  nb::list gradient_ops;
  for (const auto& [input, value] : gradient_of(op)) {
    const std::span terms = value.kind == Expression::Kind::sum
                                ? std::span<const Expression>(value.arguments)
                                : std::span<const Expression>(&value, 1);
    for (const Expression& term : terms) {
      if (term.op == nullptr) continue;
      const Parameter& parameter = signature.inputs[static_cast<std::size_t>(input)];
      gradient_ops.append(nb::make_tuple(text(parameter.name), text(term.op->name)));
    }
  }
  result["gradient_ops"] = nb::tuple(gradient_ops);
  constexpr std::array autocasts{"promote", "float32", "lower"};
  result["autocast"] = autocasts[static_cast<std::size_t>(op.spec.autocast)];
  result["in_place"] = text(op.spec.in_place);
  return result;
}

}  // namespace

NB_MODULE(_C, module) {
  module.attr("ONNX_DOMAIN_VERSION") = onnx_domain_version;
  module.attr("DEFINITION_OPSET") = definition_opset;
  module.def(
      "ops",
      [] {
        nb::list result;
        for (const Op& op : registered_ops()) result.append(describe(op));
        return result;
      },
      "The ops, as dictionaries, in the order of the table.");
  module.def(
      "cublaslt_problem", cublaslt_problem,
      "Why matrix products on CUDA cannot use cuBLASLt, and the mend; empty where they can.");
  module.def("make_function", make_function, nb::arg("name"), nb::arg("documentation"),
             "The function of the op `name`, a built-in function of the module cudarelu.");
}

}  // namespace cudarelu::binding

// The Python module cudarelu._C: the declarations of the ops, and a function for each op.

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
#include <memory>
#include <new>
#include <string>

#include "api.h"
#include "numpy_call.h"
#include "op_description.h"
#include "python_arguments.h"
#include "symbolic_shapes.h"

namespace nb = nanobind;

namespace cudarelu::binding {
namespace {

const Module& module_named(std::string_view name) {
  for (const Module* module : registered_modules()) {
    if (module->name == name) return *module;
  }
  throw nb::value_error(("no module has the name " + std::string(name)).c_str());
}

nb::list describe_modules() {
  nb::list result;
  for (const Module* module : registered_modules()) result.append(describe_module(*module));
  return result;
}

nb::str load(const char* path) { return to_str(load_module(path).name); }

nb::list describe_ops_of(const Module& module) {
  nb::list result;
  for (const Op& op : module.ops) result.append(describe(op));
  return result;
}

nb::tuple read(const char* path) {
  const std::unique_ptr<const Module> module = read_library(path);
  return nb::make_tuple(describe_module(*module), describe_ops_of(*module));
}

nb::dict read_signature(const std::string& text) { return describe(parse_signature(text)); }

/// Whether a call may take longer than releasing and acquiring the GIL.
bool is_long(Inputs inputs) {
  constexpr std::int64_t many = 16384;
  return std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor* input) {
    return input != nullptr && (!input->is_cpu() || input->numel() > many);
  });
}

bool run_plain(const Op& op, Inputs inputs, const Attributes& attributes, Tensors& outputs) {
  // In anomaly mode torch acquires the GIL under a lock of its own when it creates a node, which
  // could deadlock if this thread held the GIL.
  const bool takes_gil = torch::autograd::AnomalyMode::is_enabled();
  if (!takes_gil && !is_long(inputs)) return call_plain(op, inputs, attributes, outputs);
  // Copies the tensors: without the GIL, another thread may change those of the Python objects.
  Tensors held;
  held.reserve(inputs.size());
  InputPointers pointers;
  for (const at::Tensor* input : inputs) {
    pointers.push_back(input != nullptr ? &held.emplace_back(*input) : nullptr);
  }
  const nb::gil_scoped_release released;
  return call_plain(op, pointers, attributes, outputs);
}

/// Runs the op. Returns false after it has set a Python error.
bool run(const Op& op, Inputs inputs, const Attributes& attributes, Tensors& outputs) {
  // Outside of HANDLE_TH_ERRORS, whose handler for warnings costs as much as an allocation.
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

/// Calls torch.ops, for tensors of subclasses, modes and tracers.
nb::object call_through_torch(const Op& op, const PythonCall& call) {
  const nb::object ops = nb::module_::import_("torch").attr("ops").attr(namespace_of(op));
  const nb::object function = ops.attr(to_str(op.name));
  const auto positional = static_cast<std::size_t>(call.positional);
  nb::object result =
      nb::steal(PyObject_Vectorcall(function.ptr(), call.values, positional, call.names));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

bool has_torch_function(nb::handle input) {
  return THPVariable_Check(input.ptr()) || nb::hasattr(input.type(), "__torch_function__");
}

/// Returns an attribute as the functions of ops take it.
nb::object python_value(const AttributeSpec& spec, const Attribute& value) {
  switch (spec.type) {
    case AttributeType::label:
      return to_str(label_of(spec, value));
    case AttributeType::boolean:
      return nb::bool_(std::get<std::int64_t>(value) != 0);
    case AttributeType::integer:
      return nb::int_(std::get<std::int64_t>(value));
    case AttributeType::real:
      break;
  }
  const double number = std::get<double>(value);
  return spec.optional && std::isnan(number) ? nb::none() : nb::object(nb::float_(number));
}

/// Calls Python code for arrays of other libraries. It raises TypeError for other objects.
nb::object call_in_python(const Op& op, const Arguments& arguments) {
  nb::list inputs;
  for (const nb::handle input : arguments.inputs) {
    inputs.append(input.is_valid() ? input : nb::handle(Py_None));
  }
  nb::dict attributes;
  for (std::size_t i = 0; i < arguments.attributes.size(); ++i) {
    const AttributeSpec& spec = op.signature.attributes[i];
    attributes[to_str(spec.name)] = python_value(spec, arguments.attributes[i]);
  }
  const nb::object call = nb::module_::import_("cudarelu._arrays").attr("call");
  return call(qualified_name(op), inputs, attributes);
}

/// Runs the function of an op.
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
  return all(is_numpy_array) ? call_on_numpy(op, arguments) : call_in_python(op, arguments);
}

/// What the function of an op of another module is bound to. Python pickles such a function as an
/// attribute of this object, which itself is pickled as the cudarelu.OpModule.
struct BoundOp {
  const Op* op;
  std::string module;

  nb::object reduce() const {
    return nb::module_::import_("cudarelu._modules")
        .attr("module_named")(module)
        .attr("__reduce__")();
  }
};

const Op& op_of_module_object(PyObject* self) {
  return **static_cast<const Op**>(PyModule_GetState(self));
}

const Op& op_of_bound_op(PyObject* self) { return *nb::inst_ptr<BoundOp>(self)->op; }

/// The function of an op in C, for Python's vectorcall protocol. A function of nanobind would
/// collect the arguments in a tuple and a dictionary, which takes longer than a small kernel.
template <const Op& (*op_of)(PyObject*)>
PyObject* function_of_op(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                         PyObject* names) noexcept {
  try {
    return call(op_of(self), {values, positional, names}).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const nb::builtin_exception& error) {
    PyObject* type = error.type() == nb::exception_type::type_error    ? PyExc_TypeError
                     : error.type() == nb::exception_type::value_error ? PyExc_ValueError
                                                                       : PyExc_RuntimeError;
    PyErr_SetString(type, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, Status::out_of_memory().message().c_str());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

/// A module object whose state is the op, since Python pickles functions of modules by name.
nb::object module_object(const Op& op) {
  static PyModuleDef definition{PyModuleDef_HEAD_INIT,
                                "cudarelu",
                                nullptr,
                                sizeof(const Op*),
                                nullptr,
                                nullptr,
                                nullptr,
                                nullptr,
                                nullptr};
  nb::object result = nb::steal(PyModule_Create(&definition));
  if (!result.is_valid()) throw nb::python_error();
  *static_cast<const Op**>(PyModule_GetState(result.ptr())) = &op;
  return result;
}

const Op& op_named(const std::string& name_of_module, const std::string& name) {
  const Module& module = module_named(name_of_module);
  if (const Op* const op = module.find(name)) return *op;
  throw nb::value_error((std::string(module.name) + " has no op " + name).c_str());
}

/// Creates the built-in function of an op. `documentation` begins with the signature, as Python
/// expects of built-in functions.
nb::object make_function(const std::string& name_of_module, std::string name,
                         std::string documentation) {
  const Op* const op = &op_named(name_of_module, name);
  const Module& module = *op->module;
  struct Definition {  // Python keeps pointers to its members
    std::string name;
    std::string documentation;
    PyMethodDef method;
  };
  static auto& definitions = *new std::deque<Definition>;
  Definition& definition =
      definitions.emplace_back(std::move(name), std::move(documentation), PyMethodDef{});
  const bool is_own = &module == registered_modules().front();
  auto* const typed = is_own ? function_of_op<op_of_module_object> : function_of_op<op_of_bound_op>;
  // The cast by way of void (*)() avoids a warning; Python casts back according to the flags.
  auto* const function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(typed));
  definition.method = {definition.name.c_str(), function, METH_FASTCALL | METH_KEYWORDS,
                       definition.documentation.c_str()};
  const nb::object self = is_own ? module_object(*op) : nb::cast(BoundOp{op, name_of_module});
  return nb::steal(PyCFunction_NewEx(&definition.method, self.ptr(), to_str(module.name).ptr()));
}

nb::dict gradient(const std::string& module, const std::string& op) {
  return describe_gradient(op_named(module, op));
}

nb::list infer(const std::string& module, const std::string& op, const nb::sequence& inputs,
               const nb::sequence& attributes) {
  return infer_types(op_named(module, op), inputs, attributes);
}

nb::list describe_ops(const std::string& module) { return describe_ops_of(module_named(module)); }

/// torch's older exporter to ONNX would leave out an operator that returns nothing.
void refuse_in_export(const Op& op) {
  const nb::gil_scoped_acquire acquired;
  if (!nb::cast<bool>(nb::module_::import_("torch.onnx").attr("is_in_onnx_export")())) return;
  C10_THROW_ERROR(NotImplementedError,
                  c10::str("torch.ops.", op.module->name, ".", op.name,
                           "_ cannot be exported: use a module of cudarelu.nn instead, which can "
                           "also work in place"));
}

}  // namespace

NB_MODULE(_C, module) {
  if (const std::string problem = own_module_problem(); !problem.empty()) {
    throw nb::import_error(problem.c_str());
  }
  nb::class_<BoundOp>(module, "BoundOp").def("__reduce__", &BoundOp::reduce);
  // Functions, and thus the objects that they are bound to, live until the process ends.
  nb::set_leak_warnings(false);
  check_traced_writes(refuse_in_export);
  module.def("modules", describe_modules,
             "The loaded op modules, as dictionaries, in the order of loading.");
  module.def("load_module", load, nb::arg("path"),
             "Loads a library and registers its ops with PyTorch. Returns the name of its module. "
             "Raises ValueError.");
  module.def("read_library", read, nb::arg("path"),
             "An entry of modules() and the list of ops() for a library, which is not registered. "
             "Raises ValueError.");
  module.def(
      "check_new_name", [](const std::string& name) { check_new_name(name); }, nb::arg("name"),
      "Raises ValueError unless a new module can have the name.");
  module.def("read_signature", read_signature, nb::arg("text"),
             "A signature as a dictionary. Raises ValueError if it cannot be parsed.");
  module.def("ops", describe_ops, nb::arg("module"),
             "The declarations of the ops of a module, as dictionaries, in the table's order.");
  module.def("gradient", gradient, nb::arg("module"), nb::arg("op"),
             "The parsed gradient of an op as a dictionary; see OpInfo.gradient.");
  module.def("infer", infer, nb::arg("module"), nb::arg("op"), nb::arg("inputs"),
             nb::arg("attributes"),
             "The dtypes and shapes of the outputs of a call. An input is None or its dtype and "
             "shape, whose sizes may be symbols, or None for an unknown one; an attribute is a "
             "number, or the position of a label. Raises TypeError for a dtype, ValueError for "
             "anything else.");
  module.def(
      "cublaslt_problem", cublaslt_problem,
      "Why matrix products on CUDA cannot use cuBLASLt, and how to correct it; empty if they can.");
  module.def("make_function", make_function, nb::arg("module"), nb::arg("name"),
             nb::arg("documentation"),
             "Creates the built-in function of the op `name` of a module.");
}

}  // namespace cudarelu::binding

// Registers the ops of modules with PyTorch's dispatcher, as torch.ops.<module>.<op>, and as <op>_
// if an output may overwrite an input.

#include <torch/library.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "api.h"
#include "autocast.h"
#include "autograd.h"
#include "backend.h"
#include "registered_op.h"
#include "tracing.h"

/// Defined if the module `cudarelu` is part of this library, as in a build of all sources at once.
extern "C" __attribute__((weak, visibility("hidden"))) const cudarelu_module* cudarelu_get_module();

namespace cudarelu::binding {
namespace {

bool has_in_place_form(const Op& op) {
  return op.in_place_input >= 0 && op.signature.outputs.size() == 1;
}

std::string operator_name(const Op& op, Form form) {
  return std::string(op.name) + (form == Form::in_place ? "_" : "");
}

std::string default_text(const AttributeSpec& attribute) {
  if (attribute.optional) return "None";
  if (attribute.type == AttributeType::boolean) {
    return attribute.default_value != 0 ? "True" : "False";
  }
  std::string text = default_text_of(attribute);
  if (attribute.type == AttributeType::label) return '"' + text + '"';
  if (attribute.type == AttributeType::real && text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

/// Returns the schema: "relu(Tensor x) -> (Tensor y)", and in place "relu_(Tensor(a!) x) -> ()".
/// The in-place form returns nothing, since PyTorch's compilers do not support aliased results.
std::string schema_of(const Op& op, Form form) {
  const Signature& signature = op.signature;
  std::string text = operator_name(op, form) + "(";
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    const Parameter& input = signature.inputs[i];
    const bool overwritten = form == Form::in_place && static_cast<int>(i) == op.in_place_input;
    if (i > 0) text += ", ";
    text += overwritten ? "Tensor(a!)" : "Tensor";
    if (input.optional) text += '?';
    text.append(" ").append(input.name);
    if (input.optional) text += "=None";
  }
  if (!signature.attributes.empty()) text += ", *";
  for (const AttributeSpec& attribute : signature.attributes) {
    text.append(", ").append(python_type(attribute.type)).append(attribute.optional ? "? " : " ");
    text.append(attribute.name);
    if (!attribute.required) text.append("=").append(default_text(attribute));
  }
  text += ") -> (";
  if (form == Form::functional) {
    for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
      text.append(i > 0 ? ", Tensor " : "Tensor ").append(signature.outputs[i].name);
    }
  }
  return text + ")";
}

/// The registration of a module with the dispatcher, which its destructor would undo.
class Registration {
 public:
  /// Parses the gradients and registers the ops. Throws std::invalid_argument.
  explicit Registration(Module& module) : module_(module) {
    for (Op& op : module.ops) {
      op.attachment = &ops_.emplace_back(parse_derivative(op), nullptr);
    }
    try {
      define();
    } catch (const c10::Error& error) {
      throw std::invalid_argument("PyTorch does not accept the module " + std::string(module.name) +
                                  ": " + error.what_without_backtrace());
    }
    for (std::size_t i = 0; i < module.ops.size(); ++i) {
      const std::string name = module.ops[i].qualified_name();
      ops_[i].handle = std::make_shared<const c10::OperatorHandle>(
          c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""));
    }
  }

 private:
  void define();

  /// Calls f(op, form) for each operator.
  template <class F>
  void for_each_operator(const F& f) const {
    for (const Op& op : module_.ops) {
      f(op, Form::functional);
      if (has_in_place_form(op)) f(op, Form::in_place);
    }
  }

  /// Registers kernel(op, form) for each operator; an empty one is left out.
  template <class F>
  void implement(c10::DispatchKey key, const F& kernel) {
    torch::Library& library = libraries_.emplace_back(
        torch::Library::IMPL, std::string(module_.name), key, __FILE__, __LINE__);
    for_each_operator([&](const Op& op, Form form) {
      if (std::optional<torch::CppFunction> function = kernel(op, form)) {
        library.impl(operator_name(op, form).c_str(), *std::move(function));
      }
    });
  }

  const Module& module_;
  std::deque<RegisteredOp> ops_;
  std::deque<torch::Library> libraries_;
};

/// For in-place operators on tensors with the negative or conjugate bit. torch's own fallback does
/// not work, since it expects the operator to return its target.
void refuse_lazy_negation(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  C10_THROW_ERROR(NotImplementedError, c10::str(op.operator_name(),
                                                ": in place, no tensor may have the negative or "
                                                "conjugate bit; call resolve_neg() first"));
}

void Registration::define() {
  using Kernel = std::optional<torch::CppFunction>;
  using Key = c10::DispatchKey;
  torch::Library& definitions = libraries_.emplace_back(
      torch::Library::DEF, std::string(module_.name), std::nullopt, __FILE__, __LINE__);
  for_each_operator([&](const Op& op, Form form) {
    definitions.def(schema_of(op, form).c_str(), {at::Tag::pt2_compliant_tag});
  });
  const auto backend = [](Backend backend) {
    return [=](const Op& op, Form form) -> Kernel { return backend_kernel(op, backend, form); };
  };
  implement(Key::CPU, backend(Backend::device));
  implement(Key::CUDA, backend(Backend::device));
  implement(Key::Meta, backend(Backend::meta));
  implement(Key::Autograd,
            [](const Op& op, Form form) -> Kernel { return autograd_kernel(op, form); });
  implement(Key::ADInplaceOrView, [](const Op& op, Form form) -> Kernel {
    if (form == Form::functional) return std::nullopt;
    return version_kernel(op);
  });
  implement(Key::Tracer, [](const Op& op, Form form) -> Kernel {
    if (form == Form::functional) return std::nullopt;
    return tracer_kernel(op);
  });
  // Only the functional forms: an in-place op cannot change the dtype of its target. torch's own
  // in-place ops are not cast either.
  const auto autocast = [](c10::DeviceType device) {
    return [=](const Op& op, Form form) -> Kernel {
      if (form == Form::in_place || !has_autocast(op)) return std::nullopt;
      return autocast_kernel(op, device);
    };
  };
  implement(Key::AutocastCPU, autocast(at::kCPU));
  implement(Key::AutocastCUDA, autocast(at::kCUDA));
  for (const Key key : {Key::Negative, Key::Conjugate}) {
    implement(key, [](const Op&, Form form) -> Kernel {
      if (form == Form::functional) return std::nullopt;
      return torch::CppFunction::makeFromBoxedFunction<&refuse_lazy_negation>();
    });
  }
}

const Module& register_module(std::unique_ptr<Module> module) {
  static auto& registrations = *new std::deque<std::unique_ptr<Registration>>;  // never undone
  registrations.push_back(std::make_unique<Registration>(*module));
  return add_module(std::move(module));
}

/// The library of the module `cudarelu`: beside this library, or else in the folder above, as in
/// the Python package, which has a folder for each version of PyTorch.
std::filesystem::path own_module() {
  const auto own = library_of(reinterpret_cast<const void*>(&own_module));
  const auto folder = std::filesystem::absolute(own).parent_path();
  const std::filesystem::path beside = folder / engine_library;
  return exists(beside) ? beside : folder.parent_path() / engine_library;
}

/// Registers the module that is part of this library, or else that of a library. No exception may
/// leave an initializer.
const std::string& register_own_module() noexcept {
  static const std::string problem = [] {
    try {
      if (cudarelu_get_module != nullptr) {
        register_module(read_module(*cudarelu_get_module()));
      } else {
        load_module(own_module());
      }
      return std::string();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  }();
  return problem;
}

[[maybe_unused]] const std::string& at_start = register_own_module();

}  // namespace

std::vector<const Module*> registered_modules() { return modules(); }

std::string own_module_problem() { return register_own_module(); }

std::unique_ptr<Module> read_library(const std::filesystem::path& path) {
  return open_module(path);
}

const Module& load_module(const std::filesystem::path& path) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Module> module = open_module(path);
  if (const Module* known = find_same(*module)) return *known;
  return register_module(std::move(module));
}

void check_new_name(std::string_view name) {
  check_module_name(name);
  if (name == registered_modules().front()->name) {
    throw std::invalid_argument("a module cannot have the name " + std::string(name) +
                                ", the name of this package's module");
  }
}

std::vector<Gradient> gradient_of(const Op& op) { return parse_gradient(op); }

const Op* training_form_of(const Op& op) { return training_form(op); }

std::string cublaslt_problem() {
  const cudarelu_engines* const engines = find_engines();
  return engines != nullptr ? engines->cublaslt_problem()
                            : "libcudarelu_ops.so, which has the engines, is missing";
}

const c10::OperatorHandle& handle_of(const Op& op) { return *registered(op).handle; }

torch::jit::Stack stack_of(const Op& op, Inputs inputs, std::span<const Attribute> attributes) {
  torch::jit::Stack stack;
  stack.reserve(inputs.size() + attributes.size());
  for (const at::Tensor* input : inputs) {
    stack.push_back(input != nullptr ? c10::IValue(*input) : c10::IValue());
  }
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    stack.push_back(ivalue_of(op.signature.attributes[i], attributes[i]));
  }
  return stack;
}

Tensors dispatch(const Op& op, torch::jit::Stack arguments) {
  handle_of(op).callBoxed(arguments);
  Tensors outputs;
  for (c10::IValue& output : arguments) outputs.push_back(std::move(output).toTensor());
  return outputs;
}

}  // namespace cudarelu::binding

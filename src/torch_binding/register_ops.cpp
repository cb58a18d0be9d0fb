// Registers the ops of the table with PyTorch's dispatcher, as torch.ops.cudarelu.<op>, and as
// <op>_ if an output may overwrite an input.

#include <torch/library.h>

#include <charconv>

#include "api.h"
#include "autocast.h"
#include "autograd.h"
#include "backend.h"

namespace cudarelu::binding {
namespace {

bool has_in_place_form(const Op& op) {
  return op.in_place_input >= 0 && op.signature.outputs.size() == 1;
}

std::string operator_name(const Op& op, Form form) {
  return std::string(op.name) + (form == Form::in_place ? "_" : "");
}

std::string default_text(const AttributeSpec& attribute) {
  if (attribute.type == AttributeType::label) {
    return '"' + std::string(label_of(attribute, default_of(attribute))) + '"';
  }
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.begin(), digits.end(), attribute.default_value);
  std::string text(digits.begin(), end);
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
    text.append(", ").append(python_type(attribute.type)).append(" ").append(attribute.name);
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

/// Calls f(op, form) for each registered operator.
template <class F>
void for_each_operator(const F& f) {
  for (const Op& op : op_table()) {
    f(op, Form::functional);
    if (has_in_place_form(op)) f(op, Form::in_place);
  }
}

void register_backend(torch::Library& library, Backend backend) {
  for_each_operator([&](const Op& op, Form form) {
    library.impl(operator_name(op, form).c_str(), backend_kernel(op, backend, form));
  });
}

/// Only the functional forms: an in-place op cannot change the dtype of its target. torch's own
/// in-place ops are not cast either.
void register_autocast(torch::Library& library, c10::DeviceType device) {
  for (const Op& op : op_table()) {
    if (!has_autocast(op)) continue;
    library.impl(operator_name(op, Form::functional).c_str(), autocast_kernel(op, device));
  }
}

/// For in-place operators on tensors with the negative or conjugate bit. torch's own fallback does
/// not work, since it expects the operator to return its target.
void refuse_lazy_negation(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  C10_THROW_ERROR(NotImplementedError, c10::str(op.operator_name(),
                                                ": in place, no tensor may have the negative or "
                                                "conjugate bit; call resolve_neg() first"));
}

void register_lazy_negation(torch::Library& library) {
  for_each_operator([&](const Op& op, Form form) {
    if (form == Form::functional) return;
    library.impl(operator_name(op, form).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&refuse_lazy_negation>());
  });
}

}  // namespace

TORCH_LIBRARY(cudarelu, library) {
  for_each_operator([&](const Op& op, Form form) {
    library.def(schema_of(op, form).c_str(), {at::Tag::pt2_compliant_tag});
  });
}
TORCH_LIBRARY_IMPL(cudarelu, CPU, library) { register_backend(library, Backend::device); }
TORCH_LIBRARY_IMPL(cudarelu, CUDA, library) { register_backend(library, Backend::device); }
TORCH_LIBRARY_IMPL(cudarelu, Meta, library) { register_backend(library, Backend::meta); }
TORCH_LIBRARY_IMPL(cudarelu, Autograd, library) {
  for_each_operator([&](const Op& op, Form form) {
    library.impl(operator_name(op, form).c_str(), autograd_kernel(op, form));
  });
}
TORCH_LIBRARY_IMPL(cudarelu, ADInplaceOrView, library) {
  for_each_operator([&](const Op& op, Form form) {
    if (form == Form::in_place) library.impl(operator_name(op, form).c_str(), version_kernel(op));
  });
}

TORCH_LIBRARY_IMPL(cudarelu, AutocastCPU, library) { register_autocast(library, at::kCPU); }
TORCH_LIBRARY_IMPL(cudarelu, AutocastCUDA, library) { register_autocast(library, at::kCUDA); }
TORCH_LIBRARY_IMPL(cudarelu, Negative, library) { register_lazy_negation(library); }
TORCH_LIBRARY_IMPL(cudarelu, Conjugate, library) { register_lazy_negation(library); }

std::span<const Op> registered_ops() { return op_table(); }

std::vector<Gradient> gradient_of(const Op& op) { return parse_gradient(op); }

std::string cublaslt_problem() { return cudarelu::cublaslt_problem(); }

const c10::OperatorHandle& handle_of(const Op& op) {
  static const std::vector<c10::OperatorHandle> handles = [] {
    std::vector<c10::OperatorHandle> all;
    for (const Op& each : op_table()) {
      const std::string name = "cudarelu::" + std::string(each.name);
      all.push_back(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""));
    }
    return all;
  }();
  return handles[static_cast<std::size_t>(&op - op_table().data())];
}

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

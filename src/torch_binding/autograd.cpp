#include "autograd.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <ATen/ops/add.h>
#include <ATen/ops/expand_copy.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "api.h"
#include "backend.h"
#include "cudarelu/gradient.h"
#include "tracing.h"

namespace cudarelu::binding {

using Kind = Expression::Kind;

/// The gradients of an op and the tensors that each of them uses, or the op that has the gradients.
struct Derivative {
  struct Term {
    Gradient gradient;
    unsigned inputs = 0;   // the inputs that the gradient uses, as bits
    unsigned outputs = 0;  // likewise the outputs
  };

  explicit Derivative(const Op& op) : op(op), training_form(cudarelu::training_form(op)) {
    for (Gradient& gradient : parse_gradient(op)) {
      Term& term = terms.emplace_back();
      term.gradient = std::move(gradient);
      note(term.gradient.value, term);
    }
  }

  const Op& op;
  const Op* training_form;
  std::vector<Term> terms;
  unsigned named_gradients = 0;  // the outputs whose gradients the terms name, as bits

 private:
  void note(const Expression& expression, Term& term) {
    if (expression.kind == Kind::input) {
      term.inputs |= 1u << expression.index;
      const int like = op.signature.shape_source_of(static_cast<std::size_t>(expression.index));
      if (like >= 0) term.inputs |= 1u << like;
    }
    if (expression.kind == Kind::output) term.outputs |= 1u << expression.index;
    if (expression.kind == Kind::output_gradient) named_gradients |= 1u << expression.index;
    for (const Expression& argument : expression.arguments) note(argument, term);
  }
};

namespace {

namespace ag = torch::autograd;
namespace compiled = torch::dynamo::autograd;

/// Returns the tensor that replaces the absent input `index`: its number, in the sizes of an input
/// that has all of its dimensions. `input(i)` returns input i.
at::Tensor default_input_for(const Signature& signature, std::size_t index,
                             const std::function<at::Tensor(int)>& input) {
  const int source = signature.shape_source_of(index);
  const Parameter& parameter = signature.inputs[static_cast<std::size_t>(source)];
  const at::Tensor like = input(source);
  c10::SmallVector<c10::SymInt, 4> sizes;
  for (const Dimension& dim : signature.inputs[index].dims) {
    const auto i = static_cast<std::size_t>(index_of(parameter.dims, dim.name));
    const std::size_t axis = parameter.axis_of(i, static_cast<std::size_t>(like.dim()));
    sizes.push_back(like.sym_size(static_cast<std::int64_t>(axis)));
  }
  return at::full_symint(sizes, signature.inputs[index].number, like.options());
}

const Derivative& derivative_of(const Op& op) { return *registered(op).derivative; }

/// The values of the names in an expression.
struct Scope {
  std::function<at::Tensor(int)> input;
  std::function<at::Tensor(int)> output;
  std::function<at::Tensor(int)> output_gradient;
  std::function<Attribute(int)> attribute;
  std::function<bool(int)> has_output_gradient = [](int) { return true; };
};

/// Evaluates expressions by calls of the ops, which record gradients like a user's calls. Equal
/// texts are evaluated once.
class Evaluator {
 public:
  Evaluator(const Op& op, Scope scope) : op_(op), scope_(std::move(scope)) {}

  at::Tensor tensor(const Expression& expression) {
    for (const auto& [text, value] : known_) {
      if (text == expression.text) return value;
    }
    at::Tensor value;
    switch (expression.kind) {
      case Kind::input:
        value = scope_.input(expression.index);
        break;
      case Kind::output:
        value = scope_.output(expression.index);
        break;
      case Kind::output_gradient:
        value = scope_.output_gradient(expression.index);
        break;
      case Kind::call:
        return call(expression)[static_cast<std::size_t>(expression.output)];
      case Kind::sum:
        value = sum(expression);
        break;
      case Kind::none:
        break;
      case Kind::attribute:
      case Kind::number:
        TORCH_INTERNAL_ASSERT(false, expression.text, " is no tensor");
    }
    known_.emplace_back(expression.text, value);
    return value;
  }

  /// Returns the outputs of the op that the expression calls.
  Tensors call(const Expression& expression) {
    const std::string_view text =
        std::string_view(expression.text).substr(0, expression.text.rfind(')'));
    for (const auto& [known, values] : called_) {
      if (known == text) return values;
    }
    const Signature& called = expression.op->signature;
    Tensors held;
    for (std::size_t i = 0; i < called.inputs.size(); ++i) {
      held.push_back(argument(expression.arguments[i], called.inputs[i]));
    }
    InputPointers inputs;
    for (const at::Tensor& input : held) inputs.push_back(input.defined() ? &input : nullptr);
    Attributes attributes;
    for (std::size_t i = 0; i < called.attributes.size(); ++i) {
      attributes.push_back(attribute(expression, static_cast<int>(i)));
    }
    Tensors values;
    if (!call_plain(*expression.op, inputs, attributes, values)) {
      values = dispatch(*expression.op, stack_of(*expression.op, inputs, attributes));
    }
    called_.emplace_back(text, values);
    return values;
  }

  /// Returns attribute i of the op that the expression calls.
  Attribute attribute(const Expression& expression, int i) const {
    const Signature& called = expression.op->signature;
    const auto index = static_cast<std::size_t>(i);
    const Expression& argument = expression.arguments[called.inputs.size() + index];
    if (argument.kind == Kind::attribute) return scope_.attribute(argument.index);
    return to_attribute(called.attributes[index].type, argument.number);
  }

 private:
  /// Returns an argument of a call, undefined if it is absent. If the called op requires it,
  /// returns the tensor that replaces it.
  at::Tensor argument(const Expression& expression, const Parameter& parameter) {
    if (is_zero(expression)) {
      if (parameter.absent == Absent::number && parameter.number == 0) return {};
      const Expression* zero = &expression;
      while (zero->kind == Kind::sum) zero = &zero->arguments.front();
      return tensor(*zero);
    }
    at::Tensor value = tensor(expression);
    if (value.defined() || parameter.optional) return value;
    return default_input_for(op_.signature, static_cast<std::size_t>(expression.index),
                             scope_.input);
  }

  /// Leaves out the gradients of outputs that are zero.
  at::Tensor sum(const Expression& expression) {
    at::Tensor total;
    for (const Expression& term : expression.arguments) {
      if (is_zero(term)) continue;
      const at::Tensor value = tensor(term);
      total = total.defined() ? at::add(total, value) : value;
    }
    return total;
  }

  /// Whether the expression is zero: the gradient of an output that got none, or a sum of these.
  bool is_zero(const Expression& expression) const {
    if (expression.kind == Kind::sum) {
      return std::ranges::all_of(expression.arguments,
                                 [this](const Expression& term) { return is_zero(term); });
    }
    return expression.kind == Kind::output_gradient &&
           !scope_.has_output_gradient(expression.index);
  }

  const Op& op_;
  Scope scope_;
  std::vector<std::pair<std::string_view, at::Tensor>> known_;
  std::vector<std::pair<std::string_view, Tensors>> called_;  // without the .output after a call
};

bool names_a_gradient(const Expression& expression) {
  return expression.kind == Kind::output_gradient ||
         std::any_of(expression.arguments.begin(), expression.arguments.end(), names_a_gradient);
}

[[noreturn]] void raise_no_derivative(const Op& op, const char* kind) {
  const std::string_view advice = advice_without_gradient(op);
  C10_THROW_ERROR(NotImplementedError,
                  c10::str("the ", kind, "derivative for '", op.qualified_name(),
                           "' is not implemented", advice.empty() ? "" : ": ", advice));
}

/// Forward mode. A gradient is linear in grad_y, so its transpose maps the tangent of the input to
/// the tangent of the output. For x = f(g(grad_y)), the transpose is g^T(f^T(tangent)), and the
/// gradient of an op with respect to the argument that depends on grad_y is the transpose of the
/// op. The function descends the expression, and adds to outputs[i] at the gradient of output i.
void transpose(const Expression& expression, const at::Tensor& tangent, Evaluator& values,
               Tensors& outputs) {
  if (expression.kind == Kind::output_gradient) {
    at::Tensor& output = outputs[static_cast<std::size_t>(expression.index)];
    output = output.defined() ? at::add(output, tangent) : tangent;
    return;
  }
  if (expression.kind == Kind::sum) {
    for (const Expression& term : expression.arguments) transpose(term, tangent, values, outputs);
  }
  if (expression.kind != Kind::call) return;
  const Derivative& derivative = derivative_of(*expression.op);
  const auto value = [&](int i) {
    return values.tensor(expression.arguments[static_cast<std::size_t>(i)]);
  };
  const auto output = [&](int i) { return values.call(expression)[static_cast<std::size_t>(i)]; };
  Evaluator through(
      *expression.op,
      {.input = value,
       .output = output,
       .output_gradient =
           [&](int i) { return i == expression.output ? tangent : at::zeros_like(output(i)); },
       .attribute = [&](int i) { return values.attribute(expression, i); }});
  for (std::size_t i = 0; i < expression.op->signature.inputs.size(); ++i) {
    const Expression& argument = expression.arguments[i];
    if (!names_a_gradient(argument)) continue;
    const auto term = std::find_if(
        derivative.terms.begin(), derivative.terms.end(),
        [&](const Derivative::Term& term) { return term.gradient.input == static_cast<int>(i); });
    if (term == derivative.terms.end()) raise_no_derivative(*expression.op, "");
    transpose(argument, through.tensor(term->gradient.value), values, outputs);
  }
}

/// The backward pass of a call, without its saved tensors.
struct Backward {
  const Derivative& derivative;
  Attributes attributes;

  /// Returns the gradients of the wanted inputs; an undefined one is zero. `zeros` returns the
  /// tensor for an undefined gradient of an output.
  ag::variable_list operator()(const ag::variable_list& gradients,
                               c10::function_ref<bool(std::size_t)> wanted,
                               c10::function_ref<at::Tensor(Kind, int)> saved,
                               c10::function_ref<at::Tensor(std::size_t)> zeros) const {
    if (derivative.terms.empty()) raise_no_derivative(derivative.op, "");
    ag::variable_list results(derivative.op.signature.inputs.size());
    if (std::none_of(gradients.begin(), gradients.end(),
                     [](const at::Tensor& gradient) { return gradient.defined(); })) {
      return results;
    }
    Evaluator evaluator(
        derivative.op,
        {.input = [&](int i) { return saved(Kind::input, i); },
         .output = [&](int i) { return saved(Kind::output, i); },
         .output_gradient =
             [&](int i) {
               const auto output = static_cast<std::size_t>(i);
               return gradients[output].defined() ? gradients[output] : zeros(output);
             },
         .attribute = [&](int i) { return attributes[static_cast<std::size_t>(i)]; },
         .has_output_gradient =
             [&](int i) { return gradients[static_cast<std::size_t>(i)].defined(); }});
    for (const Derivative::Term& term : derivative.terms) {
      const auto input = static_cast<std::size_t>(term.gradient.input);
      if (wanted(input)) results[input] = evaluator.tensor(term.gradient.value);
    }
    return results;
  }
};

class OpNode final : public ag::Node {
 public:
  OpNode(const Derivative& derivative, Attributes attributes)
      : backward_{derivative, std::move(attributes)} {}

  /// Returns the inputs or outputs that the gradients to compute use, as bits.
  unsigned needed(Kind kind) const {
    unsigned bits = 0;
    for (const Derivative::Term& term : backward_.derivative.terms) {
      if (!should_compute_output(static_cast<std::size_t>(term.gradient.input))) continue;
      bits |= kind == Kind::input ? term.inputs : term.outputs;
    }
    return bits;
  }

  void save(Kind kind, int index, const at::Tensor& tensor, bool overwritten_view = false) {
    saved_keys_.emplace_back(kind, index);
    saved_.emplace_back(tensor, kind == Kind::output, overwritten_view);
  }

  std::string name() const override { return backward_.derivative.op.onnx_type + "Backward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (ag::SavedVariable& variable : saved_) variable.reset_data();
  }

  // NOLINTNEXTLINE(misc-override-with-different-visibility): PyTorch's own nodes have it public too
  ag::variable_list apply(ag::variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    return backward_(
        gradients, [&](std::size_t input) { return task_should_compute_output(input); },
        [&](Kind kind, int index) {
          const auto key = std::ranges::find(saved_keys_, SavedKey(kind, index));
          return saved_.at(static_cast<std::size_t>(key - saved_keys_.begin())).unpack(getptr());
        },
        [&](std::size_t output) {
          // new_zeros() keeps the kind of a defined gradient, which may be a DTensor.
          const at::Tensor& given = *std::ranges::find_if(gradients, &at::Tensor::defined);
          const ag::InputMetadata& metadata = input_metadata(output);
          return given.new_zeros_symint(metadata.shape_as_dim_vector(), metadata.options());
        });
  }

  // Compiled autograd, as in the nodes of torch's own ops: compiled_args() collects the tensors and
  // sizes that become inputs of the graph, and the key of the node, which is everything else. For a
  // new key, apply_with_saved() adds a call of a function of these inputs to the graph.

  void compiled_args(ag::CompiledNodeArgs& arguments) const override {
    const Op& op = backward_.derivative.op;
    if (backward_.derivative.terms.empty()) raise_no_derivative(op, "");
    arguments.collect(op.qualified_name());
    arguments.collect(wanted());
    for (const Attribute& attribute : backward_.attributes) {
      std::visit([&](auto number) { arguments.collect(number); }, attribute);
    }
    arguments.collect_size(saved_.size());
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      const auto [kind, index] = saved_keys_[i];
      arguments.collect(static_cast<std::int64_t>(kind));
      arguments.collect(static_cast<std::int64_t>(index));
      arguments.collect(saved_[i], kind == Kind::output);
    }
    for (std::size_t i = 0; i < outputs_to_complete(); ++i) arguments.collect(input_metadata(i));
  }

  ag::variable_list apply_with_saved(const ag::variable_list& gradients,
                                     ag::SwapSavedVariables& swap) override {
    std::vector<c10::IValue> values;
    std::vector<at::TypePtr> types;
    std::vector<at::TensorOptions> options;
    swap.before(saved_);
    for (const ag::SavedVariable& variable : saved_) {
      values.emplace_back(variable.unpack(getptr()));
      types.push_back(at::TensorType::get());
    }
    for (std::size_t i = 0; i < outputs_to_complete(); ++i) {
      ag::InputMetadata& output = mutable_input_metadata(i);
      swap.before(output);
      using Sizes = compiled::IValuePacker<std::vector<c10::SymInt>>;
      values.push_back(Sizes::pack(output.shape_as_dim_vector().vec()));
      types.push_back(Sizes::packed_type());
      options.push_back(output.options());
    }
    const auto function = [backward = backward_, wanted = wanted(), saved_keys = saved_keys_,
                           options](const ag::variable_list& gradients,
                                    const std::vector<c10::IValue>& values) {
      return backward(
          gradients, [&](std::size_t input) { return wanted[input]; },
          [&](Kind kind, int index) {
            const auto key = std::ranges::find(saved_keys, SavedKey(kind, index));
            return values.at(static_cast<std::size_t>(key - saved_keys.begin())).toTensor();
          },
          [&](std::size_t output) {
            return at::zeros_symint(values[saved_keys.size() + output].toSymIntVector(),
                                    options[output]);
          });
    };
    const auto& compiler = compiled::getPyCompilerInterface();
    const std::string bound =
        compiler->bind_function(swap.get_py_compiler(), name(), function, types,
                                /*is_custom_function=*/true, /*is_traceable=*/true);
    using Outputs = compiled::IValuePacker<std::vector<std::optional<ag::InputMetadata>>>;
    ag::variable_list results =
        compiler->call_function(swap.get_py_compiler(), "apply_functional", bound, gradients,
                                values, Outputs::pack(compiled::get_input_metadata(next_edges())));
    swap.after(saved_);
    for (std::size_t i = 0; i < outputs_to_complete(); ++i) swap.after(mutable_input_metadata(i));
    return results;
  }

 private:
  using SavedKey = std::pair<Kind, int>;

  std::vector<bool> wanted() const {
    std::vector<bool> inputs(num_outputs());
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = task_should_compute_output(i);
    return inputs;
  }

  /// The number of outputs whose gradients may be undefined while another one is defined.
  std::size_t outputs_to_complete() const { return num_inputs() > 1 ? num_inputs() : 0; }

  Backward backward_;
  c10::SmallVector<SavedKey, 4> saved_keys_;
  std::vector<ag::SavedVariable> saved_;  // one for each of saved_keys_
};

auto make_node(const Derivative& derivative, Attributes attributes) {
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 213
  return c10::make_intrusive<OpNode>(derivative, std::move(attributes));
#else
  return std::shared_ptr<OpNode>(new OpNode(derivative, std::move(attributes)), ag::deleteNode);
#endif
}

/// Returns the inputs of the op. Another input that replaces an absent one also gets its gradient.
Tensors with_default_inputs(const Op& op, Inputs given) {
  Tensors inputs;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const at::Tensor* const input = given[op.signature.source_of(i, given[i] != nullptr)];
    inputs.push_back(input == nullptr ? at::Tensor() : *input);
  }
  return inputs;
}

/// Returns the node of a call, which saves the inputs that its gradients use. It saves a copy of
/// `overwritten`.
auto node_of(const Op& op, const Tensors& inputs, const Attributes& attributes,
             const at::Tensor& overwritten = {}) {
  auto node = make_node(derivative_of(op), attributes);
  node->set_next_edges(ag::collect_next_edges(at::TensorList(inputs)));
  const unsigned needed = node->needed(Kind::input);
  for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
    if ((needed >> i & 1u) == 0) continue;
    const at::Tensor& input = inputs[static_cast<std::size_t>(i)];
    const bool lost = input.defined() && input.is_same(overwritten);
    node->save(Kind::input, i, lost ? input.clone() : input);
  }
  return node;
}

/// Returns the tangents of the outputs; an undefined one is zero. `inputs` have their values before
/// the call.
Tensors tangents_of(const Op& op, const Tensors& inputs, const Tensors& outputs,
                    const Attributes& attributes) {
  const Derivative& derivative = derivative_of(op);
  if (derivative.terms.empty()) raise_no_derivative(op, "forward-mode ");
  const auto primal = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor._fw_primal(0) : tensor;
  };
  Evaluator values(
      op, {.input = [&](int i) { return primal(inputs[static_cast<std::size_t>(i)]); },
           .output = [&](int i) { return primal(outputs[static_cast<std::size_t>(i)]); },
           .output_gradient =
               [&](int i) { return at::zeros_like(primal(outputs[static_cast<std::size_t>(i)])); },
           .attribute = [&](int i) { return attributes[static_cast<std::size_t>(i)]; }});
  Tensors tangents(outputs.size());
  for (const Derivative::Term& term : derivative.terms) {
    const auto index = static_cast<std::size_t>(term.gradient.input);
    if (!ag::isFwGradDefined(inputs[index])) continue;
    at::Tensor tangent = inputs[index]._fw_grad(0);
    if (op.signature.inputs[index].broadcasts) {  // the gradient is summed to the input's shape
      tangent = at::expand_copy_symint(tangent, values.tensor(term.gradient.value).sym_sizes());
    }
    transpose(term.gradient.value, tangent, values, tangents);
  }
  return tangents;
}

/// Returns the outputs of `compute`, after adding the nodes for gradients, the tangents, or both.
Tensors record(const Op& op, const Tensors& inputs, const Attributes& attributes,
               bool needs_gradient, bool has_tangents, c10::function_ref<Tensors()> compute) {
  const auto node = needs_gradient ? node_of(op, inputs, attributes) : nullptr;
  Tensors outputs = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return compute();
  }();
  if (needs_gradient) {
    const unsigned named = derivative_of(op).named_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (ag::isDifferentiableType(outputs[i].scalar_type()) &&
          (op.signature.outputs[i].is_generic() || (named >> i & 1u) != 0)) {
        ag::set_history(outputs[i], node);
      } else {
        node->add_input_metadata(ag::Node::undefined_input());  // keeps the outputs' positions
      }
    }
  }
  if (has_tangents) {
    const Tensors tangents = tangents_of(op, inputs, outputs, attributes);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (tangents[i].defined()) outputs[i]._set_fw_grad(tangents[i], 0, /*is_inplace_op=*/false);
    }
  }
  if (!needs_gradient) return outputs;
  const unsigned needed = node->needed(Kind::output);
  for (int i = 0; i < static_cast<int>(outputs.size()); ++i) {
    if ((needed >> i & 1u) != 0) {
      node->save(Kind::output, i, outputs[static_cast<std::size_t>(i)]);
    }
  }
  return outputs;
}

/// The layout of at::functorch::TensorWrapper, which wraps the tensors of a torch.func transform.
/// Its header includes one that PyTorch's packages lack.
struct TransformedTensor : c10::TensorImpl {
  at::Tensor value;
  std::int64_t level;
  bool captured;  // whether the tensor is from outside of the transform, or a view of such a tensor
  std::shared_ptr<bool> alive;
};

/// The object has another type of this layout, which the sanitizer would report.
__attribute__((no_sanitize("vptr"))) bool is_captured(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::FuncTorchGradWrapper) &&
         static_cast<const TransformedTensor*>(tensor.unsafeGetTensorImpl())->captured;
}

class AutogradKernel final : public c10::OperatorKernel {
 public:
  AutogradKernel(const Op& op, Form form) : op_(op), form_(form) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const {
    const Tensors inputs = with_default_inputs(op_, inputs_of(op_, *stack));
    const bool needs_gradient = at::GradMode::is_enabled() &&
                                std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& x) {
                                  return x.defined() && x.requires_grad();
                                });
    const bool has_tangents = std::any_of(
        inputs.begin(), inputs.end(), [](const at::Tensor& x) { return ag::isFwGradDefined(x); });
    if (form_ == Form::in_place) {
      overwrite(handle, keys, *stack, inputs, needs_gradient, has_tangents);
    } else if (!needs_gradient && !has_tangents) {
      const at::AutoDispatchBelowADInplaceOrView guard;
      handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    } else if (const Op* const form = derivative_of(op_).training_form) {
      handle_of(*form).redispatchBoxed(keys, stack);
      torch::jit::drop(*stack, form->signature.outputs.size() - op_.signature.outputs.size());
    } else {
      const auto compute = [&] {
        handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
        Tensors outputs;
        for (const c10::IValue& output : torch::jit::last(*stack, op_.signature.outputs.size())) {
          outputs.push_back(output.toTensor());
        }
        return outputs;
      };
      record(op_, inputs, attributes_of(op_, *stack), needs_gradient, has_tangents, compute);
    }
  }

 private:
  void overwrite(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                 torch::jit::Stack& stack, const Tensors& inputs, bool needs_gradient,
                 bool has_tangents) const {
    const auto target_index = static_cast<std::size_t>(op_.in_place_input);
    const at::Tensor& target = inputs[target_index];
    check_interpreted_write(op_);
    try {
      ag::check_inplace(target, needs_gradient);
    } catch (c10::Error& error) {
      error.add_context(c10::str("in ", handle.schema().operator_name()));
      throw;
    }
    // torch refuses this only for in-place ops that return their target. The gradient would be
    // lost.
    TORCH_CHECK(!is_captured(target),
                "During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to "
                "call in-place operation (",
                handle.schema().operator_name(),
                ") that would mutate a captured Tensor. This is not supported; please rewrite the "
                "function being transformed to explicitly accept the mutated Tensor(s) as inputs.");
    const Attributes attributes = attributes_of(op_, stack);
    const auto node = needs_gradient ? node_of(op_, inputs, attributes, target) : nullptr;
    Tensors before = inputs;
    if (has_tangents) before[target_index] = target.clone();  // with its tangent
    {
      const at::AutoDispatchBelowAutograd guard;  // the version counter moves below
      handle.redispatchBoxed(keys & c10::after_autograd_keyset, &stack);
    }
    if (needs_gradient) ag::rebase_history(target, node);
    if (has_tangents) {
      const Tensors tangents = tangents_of(op_, before, {target}, attributes);
      const at::Tensor tangent = tangents[0].defined() ? tangents[0] : at::zeros_like(target);
      const at::Tensor& old = target._fw_grad(0);  // An existing tangent is updated in place.
      target._set_fw_grad(old.defined() ? old.copy_(tangent) : tangent, 0, /*is_inplace_op=*/true);
    }
    if (needs_gradient && node->needed(Kind::output) != 0) {
      node->save(Kind::output, op_.in_place_output, target, target.is_view());
    }
  }

  const Op& op_;
  Form form_;
};

class VersionKernel final : public c10::OperatorKernel {
 public:
  explicit VersionKernel(const Op& op) : op_(op) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const {
    const Signature& signature = op_.signature;
    const at::Tensor target =
        torch::jit::peek(*stack, static_cast<std::size_t>(op_.in_place_input),
                         signature.inputs.size() + signature.attributes.size())
            .toTensor();
    {
      const at::AutoDispatchBelowADInplaceOrView guard;
      handle.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
    }
    ag::impl::bump_version(target);
  }

 private:
  const Op& op_;
};

}  // namespace

std::shared_ptr<const Derivative> parse_derivative(const Op& op) {
  return std::make_shared<const Derivative>(op);
}

Tensors call_recorded(const Op& op, Inputs inputs, std::span<const Attribute> attributes) {
  const Op* const form = derivative_of(op).training_form;
  if (form == nullptr) {
    Attributes held;
    for (const Attribute& attribute : attributes) held.push_back(attribute);
    return record(op, with_default_inputs(op, inputs), held,
                  /*needs_gradient=*/true, /*has_tangents=*/false,
                  [&] { return call_kernel(op, inputs, attributes); });
  }
  Tensors outputs = call_recorded(*form, inputs, attributes);
  outputs.resize(op.signature.outputs.size());
  return outputs;
}

torch::CppFunction autograd_kernel(const Op& op, Form form) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AutogradKernel>(op, form));
}

torch::CppFunction version_kernel(const Op& op) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<VersionKernel>(op));
}

}  // namespace cudarelu::binding

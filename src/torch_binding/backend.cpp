#include "backend.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>

#include "api.h"
#include "autograd.h"
#include "cudarelu/infer.h"
#include "dtypes.h"
#include "execution.h"
#include "layouts.h"
#include "symbolic_dims.h"

namespace cudarelu::binding {
namespace {

using Views = c10::SmallVector<TensorView, 4>;
using AttributeSpan = std::span<const Attribute>;

/// Returns the dtype of input i, or throws if no op supports it.
DType checked_dtype(const Op& op, std::size_t i, const at::Tensor& tensor) {
  if (const std::optional<DType> dtype = dtype_of(tensor.scalar_type())) return *dtype;
  raise(unknown_dtype(op, i, c10::getDtypeNames(tensor.scalar_type()).first));
}

/// Returns the device of the call. Unlike torch's own ops, an op does not accept a CPU scalar
/// beside tensors on a GPU.
c10::Device checked_device(const Op& op, Inputs inputs) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr) continue;
    if (!first) {
      first = i;
    } else if (inputs[i]->device() != inputs[*first]->device()) {
      std::ostringstream what;
      what << "expected all tensors to be on the same device, but "
           << op.signature.inputs[*first].name << " is on " << inputs[*first]->device() << " and "
           << op.signature.inputs[i].name << " is on " << inputs[i]->device();
      raise(detail::error(Status::Code::invalid_argument, op, what.str()));
    }
  }
  return first ? inputs[*first]->device() : c10::Device(c10::kCPU);
}

/// An input for infer() with sizes that may be symbols.
struct SymbolicView {
  bool present = false;
  DType dtype{};
  std::span<const c10::SymInt> shape;
};

template <class Dim>
using View = std::conditional_t<std::is_same_v<Dim, std::int64_t>, TensorView, SymbolicView>;

template <class Dim>
std::span<const Dim> shape_of(const at::Tensor& tensor) {
  const c10::ArrayRef<Dim> sizes = at::symint::sizes<Dim>(tensor);
  return {sizes.data(), sizes.size()};
}

/// A call whose arguments have been checked.
template <class Dim>
struct ValidatedCall {
  /// An aggregate would be cleared as a whole, which takes as long as a small kernel.
  explicit ValidatedCall(c10::Device where) : device(where) {}

  c10::SmallVector<View<Dim>, 4> inputs;  // without data
  c10::SmallVector<OutputType<Dim>, 1> outputs;
  const at::Tensor* pattern = nullptr;  // the result of common_layout()
  /// Of an op that is strided, one for each input; none if all are dense, or copied.
  c10::SmallVector<Layout<Dim>, 0> layouts;
  c10::Device device;
};

/// Sets the outputs of the usual call of an op whose tensors have one dtype and one shape. Returns
/// false for any other, which infer() checks: that takes as long as a small kernel.
bool infer_same_shape(const Op& op, Inputs inputs, ValidatedCall<std::int64_t>& call) {
  if (!op.uniform) return false;
  const TensorView& first = call.inputs[0];
  if (first.shape.size() > max_rank || !op.spec.dtypes.contains(first.dtype)) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]->is_contiguous() || call.inputs[i].dtype != first.dtype ||
        !std::ranges::equal(call.inputs[i].shape, first.shape)) {
      return false;
    }
  }
  for (OutputType<std::int64_t>& output : call.outputs) {
    output.dtype = first.dtype;
    output.shape.assign(first.shape);
  }
  return true;
}

template <class Dim>
void find_layouts(const Op& op, Inputs inputs, ValidatedCall<Dim>& call) {
  const bool all_dense = std::ranges::all_of(inputs, [](const at::Tensor* input) {
    return input == nullptr || input->is_contiguous_or_false();
  });
  if (all_dense) return;
  call.layouts.resize(inputs.size());
  bool found = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr) continue;
    call.layouts[i] = layout_of<Dim>(op.signature.inputs[i], *inputs[i]);
    found = found || !call.layouts[i].empty();
  }
  if (!found) call.layouts.clear();
}

template <class Dim>
ValidatedCall<Dim> check(const Op& op, Inputs inputs, AttributeSpan attributes) {
  ValidatedCall<Dim> call(checked_device(op, inputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    View<Dim>& view = call.inputs.emplace_back();
    view.present = inputs[i] != nullptr;
    if (!view.present) continue;
    view.dtype = checked_dtype(op, i, *inputs[i]);
    view.shape = shape_of<Dim>(*inputs[i]);
  }
  call.outputs.resize_for_overwrite(op.signature.outputs.size());
  if constexpr (std::is_same_v<Dim, std::int64_t>) {
    if (infer_same_shape(op, inputs, call)) {
      if (const Status status = check_attributes(op, attributes); !status.ok()) raise(status);
      return call;
    }
  }
  const Status status = infer<Dim>(op, std::span<const View<Dim>>(call.inputs), attributes,
                                   std::span<OutputType<Dim>>(call.outputs));
  if (!status.ok()) raise(status);
  call.pattern = common_layout(op, inputs);
  if (op.strided) find_layouts(op, inputs, call);
  return call;
}

/// The layout of output i, taken from the first of these inputs that exists; nullptr, for a dense
/// row-major output, if none does:
/// - the first input that always has the shape of the output,
/// - the first input of all, if it has as many dimensions.
template <class Dim>
const Layout<Dim>* layout_of_output(const Op& op, std::size_t i, const ValidatedCall<Dim>& call) {
  const Parameter& output = op.signature.outputs[i];
  if (call.layouts.empty() || !output.may_be_strided()) return nullptr;
  const auto& parameters = op.signature.inputs;
  const auto like = std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& input) {
    return input.is_like(output) && input.required();
  });
  const std::size_t source =
      like == parameters.end() ? 0 : static_cast<std::size_t>(like - parameters.begin());
  const Layout<Dim>& layout = call.layouts[source];
  const bool fits = parameters[source].star == output.star &&
                    parameters[source].dims.size() == output.dims.size();
  return fits && !layout.empty() ? &layout : nullptr;
}

template <class Dim>
at::Tensor allocate(const Op& op, std::size_t i, const ValidatedCall<Dim>& call) {
  const OutputType<Dim>& type = call.outputs[i];
  const Layout<Dim>* const layout = layout_of_output(op, i, call);
  const c10::ArrayRef<Dim> sizes(type.shape.span().data(), type.shape.span().size());
  const c10::ScalarType dtype = scalar_type_of(type.dtype);
  if constexpr (std::is_same_v<Dim, std::int64_t>) {
    if (call.pattern == nullptr && layout == nullptr) {
      // The same as at::empty() on the current device, but without the dispatcher.
      const c10::DeviceType device = call.device.type();
      const auto key = device == c10::kCUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
      return at::detail::empty_generic(sizes, c10::GetAllocator(device), c10::DispatchKeySet(key),
                                       dtype, std::nullopt);
    }
  }
  const auto options = c10::TensorOptions().device(call.device).dtype(dtype);
  if (layout != nullptr) {
    const auto strides = strides_in_order(op.signature.outputs[i], type.shape.span(), *layout);
    return at::symint::empty_strided<Dim>(sizes, strides, options);
  }
  if (call.pattern == nullptr) return at::symint::empty<Dim>(sizes, options);
  return at::symint::empty_strided<Dim>(sizes, at::symint::strides<Dim>(*call.pattern), options);
}

/// For a tensor whose storage was freed, as by untyped_storage().resize_(0).
[[noreturn]] void raise_no_memory(const Op& op, std::size_t input) {
  const std::string what = std::string(op.signature.inputs[input].name) +
                           " has elements, but its storage has no memory: it was freed";
  raise(detail::error(Status::Code::invalid_argument, op, what));
}

/// Runs the op on tensors that check() has accepted.
void compute(const Op& op, Inputs inputs, AttributeSpan attributes,
             std::span<const at::Tensor> outputs, ValidatedCall<std::int64_t>& call) {
  // Tensors that share a dense layout are processed as vectors in the order of their memory.
  const std::int64_t count = outputs[0].numel();
  const auto flatten = [&](TensorView& view) {
    if (call.pattern != nullptr) view.shape = std::span(&count, 1);
  };
  Tensors dense;  // contiguous copies of inputs
  const bool has_layouts = !call.layouts.empty();
  c10::SmallVector<const std::int64_t*, 8> strides(has_layouts ? inputs.size() : 0);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr) continue;
    const at::Tensor* input = inputs[i];
    if (!input->unsafeGetTensorImpl()->storage_initialized()) raise_no_memory(op, i);
    if (call.pattern == nullptr && !input->is_contiguous()) {
      const bool is_factor = op.uses_gemm && i < 2;
      call.inputs[i].transposed = is_factor && is_transposed(op.signature.inputs[i], *input);
      const bool has_strides =
          has_layouts && !call.layouts[i].empty() && !needs_aligned_copy(*input, call.layouts[i]);
      if (has_strides) {
        strides[i] = call.layouts[i].data();
      } else if (!call.inputs[i].transposed) {
        input = &dense.emplace_back(input->contiguous());
      }
    }
    call.inputs[i].data = const_cast<void*>(input->const_data_ptr());
    flatten(call.inputs[i]);
  }
  Views output_views;
  c10::SmallVector<Layout<std::int64_t>, 0> output_layouts;
  c10::SmallVector<const std::int64_t*, 4> output_strides;
  for (const at::Tensor& output : outputs) {
    // The output has a dtype of an op. NOLINTNEXTLINE(bugprone-*,clang-analyzer-*)
    const DType dtype = *dtype_of(output.scalar_type());
    output_views.push_back({output.mutable_data_ptr(), dtype, shape_of<std::int64_t>(output)});
    flatten(output_views.back());
  }
  if (has_layouts) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      output_layouts.push_back(layout_of<std::int64_t>(op.signature.outputs[i], outputs[i]));
    }
    for (const Layout<std::int64_t>& layout : output_layouts) {
      output_strides.push_back(layout.empty() ? nullptr : layout.data());
    }
  }
  TorchExecution execution(call.device);
  const Strides all = has_layouts ? Strides{strides.data(), output_strides.data()} : Strides{};
  const Status status = run(op, call.inputs, output_views, attributes, execution, all);
  if (!status.ok()) execution.raise_error(status);
}

/// Whether the op may write into `target` while it reads its inputs.
bool can_overwrite(const at::Tensor& target, Inputs inputs, const at::Tensor* pattern) {
  if (pattern == nullptr && !target.is_contiguous()) return false;
  return std::all_of(inputs.begin(), inputs.end(), [&](const at::Tensor* input) {
    return input == nullptr || input->is_same(target) ||
           at::get_overlap_status(target, *input) == at::MemOverlapStatus::No;
  });
}

/// Makes the device of the call current. The guard creates no context on the previous device.
c10::OptionalDeviceGuard guard_device(Inputs inputs) {
  for (const at::Tensor* input : inputs) {
    if (input == nullptr) continue;
    return input->is_cuda() ? c10::OptionalDeviceGuard(input->device())
                            : c10::OptionalDeviceGuard();
  }
  return c10::OptionalDeviceGuard();
}

Attribute attribute_of(const Op& op, const AttributeSpec& spec, const c10::IValue& value) {
  switch (spec.type) {
    case AttributeType::real:
      return value.isNone() ? default_of(spec) : value.toDouble();
    case AttributeType::integer:
      return value.toInt();
    case AttributeType::boolean:
      return std::int64_t{value.toBool()};
    case AttributeType::label:
      break;
  }
  Attribute position;
  const Status status = find_label(op, spec, value.toStringView(), position);
  if (!status.ok()) raise(status);
  return position;
}

/// Appends the outputs of the op to `outputs`; on Meta (Dim is SymInt) without data.
template <class Dim>
void call(const Op& op, Inputs inputs, AttributeSpan attributes, Tensors& outputs) {
  const c10::OptionalDeviceGuard guard = guard_device(inputs);
  ValidatedCall<Dim> checked = check<Dim>(op, inputs, attributes);
  for (std::size_t i = 0; i < checked.outputs.size(); ++i) {
    outputs.push_back(allocate(op, i, checked));
  }
  if constexpr (std::is_same_v<Dim, std::int64_t>) {
    compute(op, inputs, attributes, outputs, checked);
  }
}

template <class Dim>
void overwrite(const Op& op, Inputs inputs, AttributeSpan attributes) {
  const c10::OptionalDeviceGuard guard = guard_device(inputs);
  ValidatedCall<Dim> checked = check<Dim>(op, inputs, attributes);
  if constexpr (std::is_same_v<Dim, std::int64_t>) {
    const at::Tensor& target = *inputs[static_cast<std::size_t>(op.in_place_input)];
    if (can_overwrite(target, inputs, checked.pattern)) {
      compute(op, inputs, attributes, {&target, 1}, checked);
    } else {
      const at::Tensor result = allocate(op, 0, checked);
      compute(op, inputs, attributes, {&result, 1}, checked);
      target.copy_(result);
    }
  }
}

class BackendKernel final : public c10::OperatorKernel {
 public:
  BackendKernel(const Op& op, Backend backend, Form form)
      : op_(op), backend_(backend), form_(form) {}

  void operator()(const c10::OperatorHandle& /*handle*/, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) const {
    const InputPointers inputs = inputs_of(op_, *stack);
    const Attributes attributes = attributes_of(op_, *stack);
    Tensors outputs;
    if (form_ == Form::in_place) {
      backend_ == Backend::device ? overwrite<std::int64_t>(op_, inputs, attributes)
                                  : overwrite<c10::SymInt>(op_, inputs, attributes);
    } else {
      backend_ == Backend::device ? call<std::int64_t>(op_, inputs, attributes, outputs)
                                  : call<c10::SymInt>(op_, inputs, attributes, outputs);
    }
    torch::jit::drop(*stack, inputs.size() + attributes.size());
    for (at::Tensor& output : outputs) stack->emplace_back(std::move(output));
  }

 private:
  const Op& op_;
  Backend backend_;
  Form form_;
};

/// Whether the dispatcher would only record a gradient and call a kernel for the CPU or CUDA: the
/// tensor has no key for autocast, a mode, a transform or a tracer.
bool is_plain(const at::Tensor& tensor, const c10::impl::LocalDispatchKeySet& local) {
  constexpr c10::DispatchKeySet plain =
      c10::default_included_set |
      c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::CUDA,
                           c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA});
  const c10::DispatchKeySet keys = (tensor.key_set() | local.included_) - local.excluded_;
  return (keys.raw_repr() & ~plain.raw_repr()) == 0 &&
         (tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr ||
          !tensor._fw_grad(0).defined());
}

}  // namespace

InputPointers inputs_of(const Op& op, const torch::jit::Stack& stack) {
  const Signature& signature = op.signature;
  auto argument = stack.end() - static_cast<std::ptrdiff_t>(signature.inputs.size() +
                                                            signature.attributes.size());
  InputPointers inputs;
  for (std::size_t i = 0; i < signature.inputs.size(); ++i, ++argument) {
    inputs.push_back(argument->isNone() ? nullptr : &argument->toTensor());
  }
  return inputs;
}

Attributes attributes_of(const Op& op, const torch::jit::Stack& stack) {
  const auto& specs = op.signature.attributes;
  auto value = stack.end() - static_cast<std::ptrdiff_t>(specs.size());
  Attributes attributes;
  for (const AttributeSpec& spec : specs) attributes.push_back(attribute_of(op, spec, *value++));
  return attributes;
}

Tensors call_kernel(const Op& op, Inputs inputs, std::span<const Attribute> attributes) {
  Tensors outputs;
  call<std::int64_t>(op, inputs, attributes, outputs);
  return outputs;
}

torch::CppFunction backend_kernel(const Op& op, Backend backend, Form form) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<BackendKernel>(op, backend, form));
}

bool call_plain(const Op& op, Inputs inputs, std::span<const Attribute> attributes,
                Tensors& outputs) {
  if (at::hasCallbacks()) return false;
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  bool differentiable = false;
  for (const at::Tensor* input : inputs) {
    if (input == nullptr) continue;
    if (!is_plain(*input, local)) return false;
    differentiable = differentiable || input->requires_grad();
  }
  const bool records = differentiable && at::GradMode::is_enabled() &&
                       !local.excluded_.has_any(c10::autograd_dispatch_keyset);
  if (records) {
    outputs = call_recorded(op, inputs, attributes);
  } else {
    call<std::int64_t>(op, inputs, attributes, outputs);
  }
  return true;
}

Status run_on_host(const Op& op, std::span<const TensorView> inputs,
                   std::span<const TensorView> outputs, std::span<const Attribute> attributes) {
  TorchExecution execution{c10::Device(c10::kCPU)};
  return run(op, inputs, outputs, attributes, execution);
}

}  // namespace cudarelu::binding

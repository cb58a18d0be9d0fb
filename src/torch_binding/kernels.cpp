#include "kernels.h"

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
#include <optional>
#include <sstream>

#include "api.h"
#include "cudarelu/infer.h"
#include "execution.h"

namespace cudarelu {

/// Sizes that may be symbols: a comparison becomes a guard or, for a size that is known only when
/// the program runs, a check at that time.
template <>
struct DimTraits<c10::SymInt> {
  static bool differ(const c10::SymInt& a, const c10::SymInt& b) {
    return !a.sym_eq(b).expect_true(__FILE__, __LINE__);
  }
  /// Of numbers alone: a guard would tell users to bound a size that the call itself checks again.
  static bool exceeds(const c10::SymInt& a, std::int64_t limit) {
    return a.maybe_as_int().value_or(0) > limit;
  }
  static std::string text(const c10::SymInt& dim) {
    std::ostringstream text;
    text << dim;
    return text.str();
  }
};

namespace binding {
namespace {

using Views = c10::SmallVector<TensorView, 4>;

std::optional<DType> dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return DType::float32;
    case c10::ScalarType::Double:
      return DType::float64;
    case c10::ScalarType::Half:
      return DType::float16;
    case c10::ScalarType::BFloat16:
      return DType::bfloat16;
    case c10::ScalarType::Char:
      return DType::int8;
    case c10::ScalarType::Byte:
      return DType::uint8;
    case c10::ScalarType::Int:
      return DType::int32;
    case c10::ScalarType::Long:
      return DType::int64;
    default:
      return std::nullopt;
  }
}

c10::ScalarType scalar_type_of(DType dtype) {
  constexpr std::array<c10::ScalarType, all_dtypes.size()> types{
      c10::ScalarType::Float,    c10::ScalarType::Double, c10::ScalarType::Half,
      c10::ScalarType::BFloat16, c10::ScalarType::Char,   c10::ScalarType::Byte,
      c10::ScalarType::Int,      c10::ScalarType::Long};
  return types[static_cast<std::size_t>(dtype)];
}

/// The dtype of input i.
DType checked_dtype(const Op& op, std::size_t i, const at::Tensor& tensor) {
  if (const std::optional<DType> dtype = dtype_of(tensor.scalar_type())) return *dtype;
  raise(unknown_dtype(op, i, c10::getDtypeNames(tensor.scalar_type()).first));
}

/// The device of the call. Unlike torch's own ops, an op takes no scalar tensor of the CPU beside
/// tensors of a GPU.
c10::Device checked_device(const Op& op, const Tensors& inputs) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    if (!first) {
      first = i;
    } else if (inputs[i].device() != inputs[*first].device()) {
      std::ostringstream what;
      what << "expected all tensors to be on the same device, but "
           << op.signature.inputs[*first].name << " is on " << inputs[*first].device() << " and "
           << op.signature.inputs[i].name << " is on " << inputs[i].device();
      raise(detail::error(Status::Code::invalid_argument, op, what.str()));
    }
  }
  return first ? inputs[*first].device() : c10::Device(c10::kCPU);
}

/// An input as infer() wants it.
template <class Dim>
struct Argument {
  bool present = false;
  DType dtype{};
  std::span<const Dim> shape;
};

template <class Dim>
std::span<const Dim> shape_of(const at::Tensor& tensor) {
  const c10::ArrayRef<Dim> sizes = at::symint::sizes<Dim>(tensor);
  return {sizes.data(), sizes.size()};
}

/// Whether strides are equal; not, where that is known only when the program runs.
bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  return std::ranges::equal(a.sym_strides(), b.sym_strides(),
                            [](const c10::SymInt& x, const c10::SymInt& y) {
                              return x.sym_eq(y).guard_or_false(__FILE__, __LINE__);
                            });
}

/// The input whose strides the outputs get; nullptr where they are contiguous.
const at::Tensor* common_layout(const Op& op, const Tensors& inputs) {
  if (!op.elementwise) return nullptr;
  const at::Tensor* pattern = nullptr;
  bool contiguous = true;
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) continue;
    contiguous = contiguous && input.is_contiguous_or_false();
    if (pattern == nullptr) {
      pattern = &input;
    } else if (!same_strides(input, *pattern)) {
      return nullptr;
    }
  }
  if (contiguous || !pattern->unsafeGetTensorImpl()->is_non_overlapping_and_dense_or_false()) {
    return nullptr;
  }
  return pattern;
}

/// Where the tensors of a call are, and how they lie in memory.
struct Layout {
  const at::Tensor* pattern;  // as common_layout() says
  c10::TensorOptions options;
};

/// Checks the arguments of a call; returns the types of the outputs.
template <class Dim>
Layout check(const Op& op, const Tensors& inputs, const Attributes& attributes,
             std::span<OutputType<Dim>> outputs) {
  const c10::Device device = checked_device(op, inputs);
  c10::SmallVector<Argument<Dim>, 4> arguments(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    arguments[i] = {true, checked_dtype(op, i, inputs[i]), shape_of<Dim>(inputs[i])};
  }
  const Status status =
      infer<Dim>(op, std::span<const Argument<Dim>>(arguments), attributes, outputs);
  if (!status.ok()) raise(status);
  return {common_layout(op, inputs), c10::TensorOptions().device(device)};
}

template <class Dim>
at::Tensor allocate(const OutputType<Dim>& type, const Layout& layout) {
  const c10::ArrayRef<Dim> sizes(type.shape.span().data(), type.shape.span().size());
  const c10::ScalarType dtype = scalar_type_of(type.dtype);
  if constexpr (std::is_same_v<Dim, std::int64_t>) {
    if (layout.pattern == nullptr) {
      // What at::empty() comes to for a device that is current, without its trip to the dispatcher.
      const c10::DeviceType device = layout.options.device().type();
      const auto key = device == c10::kCUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
      return at::detail::empty_generic(sizes, c10::GetAllocator(device), c10::DispatchKeySet(key),
                                       dtype, std::nullopt);
    }
  }
  const c10::TensorOptions options = layout.options.dtype(dtype);
  if (layout.pattern == nullptr) return at::symint::empty<Dim>(sizes, options);
  return at::symint::empty_strided<Dim>(sizes, at::symint::strides<Dim>(*layout.pattern), options);
}

/// Runs the op on tensors that check() has accepted.
void compute(const Op& op, const Tensors& inputs, const Attributes& attributes,
             const Tensors& outputs, const Layout& layout) {
  const std::int64_t count = outputs[0].numel();
  // In a shared layout that is not row-major, an element's place in memory is the same in all.
  const auto view = [&](const at::Tensor& tensor, void* data) {
    return TensorView{data, *dtype_of(tensor.scalar_type()),
                      layout.pattern ? std::span(&count, 1) : shape_of<std::int64_t>(tensor), true};
  };
  Tensors dense;
  Views input_views;
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) {
      input_views.emplace_back().present = false;
      continue;
    }
    dense.push_back(layout.pattern ? input : input.contiguous());
    input_views.push_back(view(dense.back(), const_cast<void*>(dense.back().const_data_ptr())));
  }
  Views output_views;
  for (const at::Tensor& output : outputs) {
    output_views.push_back(view(output, output.mutable_data_ptr()));
  }
  TorchExecution execution(layout.options.device());
  const Status status = run({op, input_views, output_views, attributes, execution});
  if (!status.ok()) execution.raise_error(status);
}

/// Whether the op may write into `target` while it reads its inputs.
bool can_overwrite(const at::Tensor& target, const Tensors& inputs, const Layout& layout) {
  if (layout.pattern == nullptr && !target.is_contiguous()) return false;
  return std::all_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
    return !input.defined() || input.is_same(target) ||
           at::get_overlap_status(target, input) == at::MemOverlapStatus::No;
  });
}

/// Makes the device of a call current. torch's guard makes no context on the device before it.
c10::OptionalDeviceGuard guard_device(const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) continue;
    return input.is_cuda() ? c10::OptionalDeviceGuard(input.device()) : c10::OptionalDeviceGuard();
  }
  return c10::OptionalDeviceGuard();
}

/// The outputs of the op; on Meta (Dim is SymInt) without data.
template <class Dim>
Tensors call(const Op& op, const Tensors& inputs, const Attributes& attributes) {
  const c10::OptionalDeviceGuard guard = guard_device(inputs);
  c10::SmallVector<OutputType<Dim>, 1> types(op.signature.outputs.size());
  const Layout layout = check<Dim>(op, inputs, attributes, types);
  Tensors outputs;
  for (const OutputType<Dim>& type : types) outputs.push_back(allocate(type, layout));
  if constexpr (std::is_same_v<Dim, std::int64_t>) {
    compute(op, inputs, attributes, outputs, layout);
  }
  return outputs;
}

template <class Dim>
void overwrite(const Op& op, const Tensors& inputs, const Attributes& attributes) {
  const c10::OptionalDeviceGuard guard = guard_device(inputs);
  c10::SmallVector<OutputType<Dim>, 1> types(op.signature.outputs.size());
  const Layout layout = check<Dim>(op, inputs, attributes, types);
  if constexpr (std::is_same_v<Dim, std::int64_t>) {
    const at::Tensor& target = inputs[static_cast<std::size_t>(op.in_place_input)];
    if (can_overwrite(target, inputs, layout)) {
      compute(op, inputs, attributes, {target}, layout);
    } else {
      const at::Tensor result = allocate(types[0], layout);
      compute(op, inputs, attributes, {result}, layout);
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
    Tensors inputs;
    Attributes attributes;
    take_arguments(*stack, inputs, attributes);
    if (form_ == Form::in_place) {
      backend_ == Backend::device ? overwrite<std::int64_t>(op_, inputs, attributes)
                                  : overwrite<c10::SymInt>(op_, inputs, attributes);
      return;
    }
    Tensors outputs = backend_ == Backend::device ? call<std::int64_t>(op_, inputs, attributes)
                                                  : call<c10::SymInt>(op_, inputs, attributes);
    for (at::Tensor& output : outputs) stack->emplace_back(std::move(output));
  }

 private:
  void take_arguments(torch::jit::Stack& stack, Tensors& inputs, Attributes& attributes) const {
    const Signature& signature = op_.signature;
    const std::size_t count = signature.inputs.size() + signature.attributes.size();
    auto argument = stack.end() - static_cast<std::ptrdiff_t>(count);
    for (std::size_t i = 0; i < signature.inputs.size(); ++i, ++argument) {
      inputs.push_back(argument->isNone() ? at::Tensor() : std::move(*argument).toTensor());
    }
    for (const AttributeSpec& spec : signature.attributes) {
      attributes.push_back(spec.integer ? Attribute(argument->toInt())
                                        : Attribute(argument->toDouble()));
      ++argument;
    }
    torch::jit::drop(stack, count);
  }

  const Op& op_;
  Backend backend_;
  Form form_;
};

/// Whether the dispatcher would see but a dense tensor of the CPU or CUDA, without a gradient.
bool is_plain(const at::Tensor& tensor, bool records) {
  constexpr c10::DispatchKeySet plain = c10::DispatchKeySet(c10::DispatchKey::CPU) |
                                        c10::DispatchKeySet(c10::DispatchKey::CUDA) |
                                        c10::DispatchKeySet(c10::DispatchKey::AutogradCPU) |
                                        c10::DispatchKeySet(c10::DispatchKey::AutogradCUDA) |
                                        c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
  if ((tensor.key_set().raw_repr() & ~plain.raw_repr()) != 0) return false;
  return !(records && tensor.requires_grad()) && !tensor._fw_grad(0).defined();
}

}  // namespace

torch::CppFunction backend_kernel(const Op& op, Backend backend, Form form) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<BackendKernel>(op, backend, form));
}

bool call_plain(const Op& op, const Tensors& inputs, const Attributes& attributes,
                Tensors& outputs) {
  // Included keys: of tracers, of transforms, of Python's modes.
  if (!c10::impl::tls_local_dispatch_key_set().included_.empty() || at::hasCallbacks())
    return false;
  const bool records = at::GradMode::is_enabled();
  const bool plain = std::all_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
    return !input.defined() || is_plain(input, records);
  });
  if (plain) outputs = call<std::int64_t>(op, inputs, attributes);
  return plain;
}

Status unknown_dtype(const Op& op, std::size_t input, std::string_view dtype) {
  const Parameter& parameter = op.signature.inputs[input];
  std::string what(parameter.name);
  if (parameter.kind == ElementKind::type_variable) {
    what.append(" is ").append(dtype).append("; supported are ").append(names_of(op.spec.dtypes));
  } else {
    what.append(" must be ").append(name_of(parameter.dtype({}))).append(", not ").append(dtype);
  }
  return detail::error(Status::Code::unsupported_dtype, op, what);
}

Status infer_on_host(const Op& op, std::span<const TensorView> inputs,
                     std::span<const Attribute> attributes,
                     std::span<OutputType<std::int64_t>> outputs) {
  return infer<std::int64_t>(op, inputs, attributes, outputs);
}

Status run_on_host(const Op& op, std::span<const TensorView> inputs,
                   std::span<const TensorView> outputs, std::span<const Attribute> attributes) {
  TorchExecution execution{c10::Device(c10::kCPU)};
  return run({op, inputs, outputs, attributes, execution});
}

}  // namespace binding
}  // namespace cudarelu

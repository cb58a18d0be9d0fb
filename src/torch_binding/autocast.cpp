#include "autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

namespace cudarelu::binding {
namespace {

bool is_castable(const Parameter& input) { return input.is_generic(); }

class AutocastKernel final : public c10::OperatorKernel {
 public:
  AutocastKernel(const Op& op, c10::DeviceType device) : op_(op), device_(device) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) const {
    const c10::impl::ExcludeDispatchKeyGuard below(
        at::autocast::get_autocast_dispatch_key_from_device_type(device_));
    if (const std::optional<at::ScalarType> dtype = cast_dtype(*stack)) {
      for_each_eligible(*stack, [&](c10::IValue& input) {
        input = at::autocast::cached_cast(*dtype, input.toTensor(), device_);
      });
    }
    handle.callBoxed(stack);
  }

 private:
  /// Calls f with each floating-point tensor on the device, except float64, which torch never
  /// casts.
  template <class F>
  void for_each_eligible(torch::jit::Stack& stack, const F& f) const {
    const Signature& signature = op_.signature;
    auto argument = stack.end() - static_cast<std::ptrdiff_t>(signature.inputs.size() +
                                                              signature.attributes.size());
    for (const Parameter& input : signature.inputs) {
      c10::IValue& value = *argument++;
      if (!is_castable(input) || value.isNone()) continue;
      if (at::autocast::is_eligible(value.toTensor(), device_)) f(value);
    }
  }

  /// Returns the dtype that the inputs are cast to; nothing if they are not cast.
  std::optional<at::ScalarType> cast_dtype(torch::jit::Stack& stack) const {
    if (op_.spec.autocast == Autocast::float32) return at::kFloat;
    if (op_.spec.autocast == Autocast::lower) return at::autocast::get_autocast_dtype(device_);
    std::optional<at::ScalarType> first;
    bool mixed = false;
    for_each_eligible(stack, [&](const c10::IValue& input) {
      const at::ScalarType dtype = input.toTensor().scalar_type();
      mixed = mixed || dtype != first.value_or(dtype);
      first = dtype;
    });
    return mixed ? std::optional(at::kFloat) : std::nullopt;
  }

  const Op& op_;
  c10::DeviceType device_;
};

}  // namespace

bool has_autocast(const Op& op) {
  const auto& inputs = op.signature.inputs;
  return op.spec.autocast != Autocast::promote ||
         std::count_if(inputs.begin(), inputs.end(), is_castable) > 1;
}

torch::CppFunction autocast_kernel(const Op& op, c10::DeviceType device) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AutocastKernel>(op, device));
}

}  // namespace cudarelu::binding

#include <array>

#include "activation.h"
#include "cuda/gemm/activate.h"
#include "cudarelu/detail/cuda/elementwise.cuh"

namespace cudarelu::gpu {
namespace {

template <Activation activation>
struct Activate {
  static constexpr OpSpec spec{.signature = "activate(x: T[*]) -> y: T[*]",
                               .summary = "",
                               .dtypes = floating_types,
                               .definition = ""};
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    return activated<activation>(x);
  }
};

template <Activation activation>
struct ActivateAndCombine {
  static constexpr OpSpec spec{
      .signature = "combine(x: T[*], other: T[*], *, multiplies: float) -> y: T[*]",
      .summary = "",
      .dtypes = floating_types,
      .definition = ""};
  template <class T>
  CUDARELU_FN T operator()(T x, T other, T multiplies) const {
    return combined(multiplies == T(1) ? Combine::multiply : Combine::add, activated<activation>(x),
                    other);
  }
};

}  // namespace

Status activate(const Call& call, Activation activation, DType dtype, std::int64_t size,
                const void* x, void* y) {
  const std::array shape{size};
  const std::array inputs{TensorView{const_cast<void*>(x), dtype, shape}};
  const std::array outputs{TensorView{y, dtype, shape}};
  const Call pass{call.op, inputs, outputs, {}, call.execution};
  return visit_activation(
      activation, [&](auto constant) { return elementwise_cuda<Activate<constant.value>>(pass); });
}

Status activate_and_combine(const Call& call, const Gemm& gemm, Activation activation,
                            const void* x) {
  const std::array shape{gemm.batch * gemm.m * gemm.n};
  const auto view = [&](const void* data) {
    return TensorView{const_cast<void*>(data), gemm.dtype, shape};
  };
  const std::array inputs{view(x), view(gemm.other)};
  const std::array outputs{view(gemm.d)};
  const std::array<Attribute, 1> attributes{gemm.combine == Combine::multiply ? 1.0 : 0.0};
  const Call pass{call.op, inputs, outputs, attributes, call.execution};
  return visit_activation(activation, [&](auto constant) {
    return elementwise_cuda<ActivateAndCombine<constant.value>>(pass);
  });
}

}  // namespace cudarelu::gpu

#include <array>

#include "activation.h"
#include "cuda/gemm/activate.h"
#include "pointwise/cuda.cuh"

namespace cudarelu::cuda {
namespace {

template <Activation activation>
struct Activate {
  static constexpr OpSpec spec{.signature = "activate(x: T[*]) -> y: T[*]",
                               .summary = "",
                               .dtypes = floating_types,
                               .definition = ""};
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    with_activation(activation, [&](const auto& activate) { x = activate(x); });
    return x;
  }
};

}  // namespace

Status activate(const Call& call, Activation activation, DType dtype, std::int64_t size,
                const void* x, void* y) {
  const std::array shape{size};
  const std::array inputs{TensorView{const_cast<void*>(x), dtype, shape}};
  const std::array outputs{TensorView{y, dtype, shape}};
  const Call pass{call.op, inputs, outputs, {}, call.execution};
  switch (activation) {
    case Activation::none:
      return pointwise_cuda<Activate<Activation::none>>(pass);
    case Activation::relu:
      return pointwise_cuda<Activate<Activation::relu>>(pass);
    case Activation::gelu_erf:
      return pointwise_cuda<Activate<Activation::gelu_erf>>(pass);
    case Activation::gelu_tanh:
      return pointwise_cuda<Activate<Activation::gelu_tanh>>(pass);
  }
  return {Status::Code::internal, "no such activation"};
}

}  // namespace cudarelu::cuda

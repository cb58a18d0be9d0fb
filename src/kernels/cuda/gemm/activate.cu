#include <array>

#include "activation.h"
#include "cuda/gemm/activate.h"
#include "cudarelu/cuda/elementwise.cuh"

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
    return activated<activation>(x);
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

}  // namespace cudarelu::cuda

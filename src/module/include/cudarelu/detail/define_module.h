// The table of a module, made of the declarations of its ops. Generated code uses it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "cudarelu/detail/boundary.h"
#include "cudarelu/detail/signature.h"
#include "cudarelu/elementwise.h"
#include "cudarelu/op_spec.h"
#include "cudarelu/product.h"
#ifdef CUDARELU_WITH_CUDA
#include "cudarelu/detail/cuda/device.h"
#endif

/// Runs the op of a name for tvm-ffi; see src/readers/tvm_ffi.
extern "C" int cudarelu_tvm_ffi(const char* name, const void* arguments, std::int32_t count,
                                void* result);

/// Defines the function of an op that tvm-ffi finds by the op's name. `used`: nothing here calls
/// it.
#define CUDARELU_TVM_FFI(op, op_name)                                                     \
  static_assert(cudarelu::parse_signature(op::spec.signature).name == #op_name,           \
                "the signature must be a literal, which begins with the op's name");      \
  extern "C" inline __attribute__((visibility("default"), used)) int __tvm_ffi_##op_name( \
      void* /*self*/, const void* arguments, std::int32_t count, void* result) {          \
    return cudarelu_tvm_ffi(#op_name, arguments, count, result);                          \
  }

namespace cudarelu::detail {

/// Runs a kernel with the arguments of a reader; converts exceptions to errors.
cudarelu_code run_kernel(const cudarelu_call& call, cudarelu_error& error,
                         FunctionRef<Status(const Call&)> kernel) noexcept;

/// The same for an op that is a matrix product, by the engines that the reader lends.
cudarelu_code run_product(const cudarelu_call& call, cudarelu_error& error,
                          Gemm (*gemm)(const Call&)) noexcept;

template <Kernel kernel>
cudarelu_code entry(const cudarelu_call* call, cudarelu_error* error) {
  return run_kernel(*call, *error, [](const Call& each) { return kernel(each); });
}

template <class F>
cudarelu_code product_entry(const cudarelu_call* call, cudarelu_error* error) {
  return run_product(*call, *error, F::gemm);
}

template <class F>
inline constexpr bool is_product = requires(const Call& call) { F::gemm(call); };
template <class F>
inline constexpr bool has_cpu = requires(const Call& call) { F::cpu(call); };
template <class F>
inline constexpr bool has_cuda = requires(const Call& call) { F::cuda(call); };
/// None of these: an elementwise functor.
template <class F>
inline constexpr bool is_functor = !is_product<F> && !has_cpu<F> && !has_cuda<F>;

#ifdef CUDARELU_WITH_CUDA
/// Runs a kernel with the device of the call current.
template <Kernel kernel>
Status on_device(const Call& call) {
  return gpu::run_on_device(call, kernel);
}
#endif

/// Null for an op that has only the function `cuda`.
template <class F>
constexpr cudarelu_kernel cpu_kernel() {
  if constexpr (is_product<F>) {
    return product_entry<F>;
  } else if constexpr (is_functor<F>) {
    return entry<elementwise_cpu<F>>;
  } else if constexpr (has_cpu<F>) {
    return entry<F::cpu>;
  } else {
    return nullptr;
  }
}

/// Null in a module without CUDA, and for an op that has only the function `cpu`.
template <class F>
constexpr cudarelu_kernel cuda_kernel() {
#ifdef CUDARELU_WITH_CUDA
  if constexpr (is_product<F>) {
    return product_entry<F>;
  } else if constexpr (is_functor<F>) {
    return entry<on_device<elementwise_cuda<F>>>;
  } else if constexpr (has_cuda<F>) {
    return entry<on_device<F::cuda>>;
  }
#endif
  return nullptr;
}

template <class F>
constexpr std::uint32_t flags() {
  static_assert(!F::spec.strided || !(is_product<F> || is_functor<F>),
                "only an op with kernels of its own reads strides");
  if constexpr (is_product<F>) return CUDARELU_PRODUCT;
  if constexpr (is_functor<F>) {
    static_assert(signature_of<F>.is_elementwise(),
                  "an op without kernels of its own is elementwise: all tensors are of type T, "
                  "there is one output, and each input is required and has the output's shape, or "
                  "its last dimensions");
    if (elementwise::row_inputs<F> == 0) return CUDARELU_ELEMENTWISE;
  }
  return F::spec.strided ? CUDARELU_STRIDED : 0;
}

constexpr const char* text(std::string_view literal) {
  return literal.empty() ? "" : literal.data();
}

/// Whether the signature of F can be parsed; if not, this does not compile.
template <class F>
inline constexpr bool is_declared = !parse_signature(F::spec.signature).inputs.empty();

template <class F>
inline constexpr cudarelu_op op_of{
    .size = sizeof(cudarelu_op),
    .signature = text(F::spec.signature),
    .summary = text(F::spec.summary),
    .in_place = text(F::spec.in_place),
    .gradient = text(F::spec.gradient),
    .alias_domain = text(F::spec.onnx_alias.domain),
    .alias_op_type = text(F::spec.onnx_alias.op_type),
    .definition = text(F::spec.definition),
    .equivalent_forms = text(F::spec.equivalent_forms),
    .dtypes = F::spec.dtypes.bits,
    .autocast = static_cast<std::uint32_t>(F::spec.autocast),
    .flags = flags<F>(),
    .cpu = cpu_kernel<F>(),
    .cuda = cuda_kernel<F>(),
    .alias_inputs = text(F::spec.onnx_alias.inputs),
};

template <class... F>
struct List {};

template <class... F>
inline constexpr std::array ops_of{&op_of<F>...};

/// The module of the ops F. `built_for` names the devices and architectures, for messages.
template <class... F>
constexpr cudarelu_module module_of(List<F...> /*ops*/, const char* name, const char* built_for,
                                    const cudarelu_engines* engines = nullptr) {
  return {.size = sizeof(cudarelu_module),
          .version = CUDARELU_MODULE_VERSION,
          .onnx_version = 1,
          .definition_opset = 18,
          .op_count = sizeof...(F),
          .name = name,
          .onnx_domain = name,
          .built_for = built_for,
          .ops = ops_of<F...>.data(),
          .engines = engines};
}

}  // namespace cudarelu::detail

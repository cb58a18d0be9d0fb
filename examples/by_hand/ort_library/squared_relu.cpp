// The op, its kernel for the CPU, and the registration of both kernels.
#define ORT_API_MANUAL_INIT
#include "squared_relu.h"

#include <onnxruntime_cxx_api.h>
#include <onnxruntime_lite_custom_op.h>

#include <concepts>
#include <memory>

using Ort::Custom::Tensor;

template <class T>
T squared_relu(T x) {
  if constexpr (std::floating_point<T>) {
    return x < 0 ? T(0) : x * x;
  } else {  // Ort::Float16_t or Ort::BFloat16_t
    return T(squared_relu(x.ToFloat()));
  }
}

template <class T>
void on_cpu(const Tensor<T>& x, Tensor<T>& y) {
  const T* in = x.Data();
  T* out = y.Allocate(x.Shape());
  for (std::int64_t i = 0; i < x.NumberOfElement(); ++i) out[i] = squared_relu(in[i]);
}

template <class T>
void on_cuda(OrtKernelContext* context, const Tensor<T>& x, Tensor<T>& y) {
  squared_relu_cuda(Ort::TypeToTensorType<T>::type, x.Data(), y.Allocate(x.Shape()),
                    x.NumberOfElement(), Ort::KernelContext(context).GetGPUComputeStream());
}

Ort::Status infer_shape(Ort::ShapeInferContext& context) {
  return context.SetOutputShape(0, context.GetInputShape(0));
}

void add(Ort::CustomOpDomain& domain, const char* provider, auto kernel) {
  domain.Add(Ort::Custom::CreateLiteCustomOp("SquaredRelu", provider, kernel, infer_shape));
}

template <class... T>
Ort::CustomOpDomain make_domain() {
  Ort::CustomOpDomain domain("by_hand");
  (add(domain, "CPUExecutionProvider", on_cpu<T>), ...);
#ifdef WITH_CUDA
  (add(domain, "CUDAExecutionProvider", on_cuda<T>), ...);
#endif
  return domain;
}

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  Ort::InitApi(base->GetApi(ORT_API_VERSION));
  try {
    // The domain and its ops live as long as the process, as sessions need.
    static Ort::CustomOpDomain domain =
        make_domain<float, double, Ort::Float16_t, Ort::BFloat16_t>();
    Ort::UnownedSessionOptions(options).Add(domain);
    return nullptr;
  } catch (const std::exception& error) {
    return Ort::Status(error.what(), ORT_FAIL).release();
  }
}

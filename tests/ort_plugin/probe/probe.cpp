// The op PROBE_DOMAIN::PROBE_OP in float32. It records the addresses of its tensors. On the CPU
// provider it computes y = -x; on the CUDA provider it writes nothing.

#include <onnxruntime_c_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

std::vector<const void*> addresses;  // of x and y for each call

struct Probe : OrtCustomOp {
  explicit Probe(const char* provider) : OrtCustomOp{}, provider(provider) {
    version = 16;
    GetName = [](const OrtCustomOp*) { return PROBE_OP; };
    GetExecutionProviderType = [](const OrtCustomOp* self) {
      return static_cast<const Probe*>(self)->provider;
    };
    GetInputTypeCount = GetOutputTypeCount = [](const OrtCustomOp*) { return std::size_t{1}; };
    GetInputType = GetOutputType = [](const OrtCustomOp*, std::size_t) {
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    };
    GetInputCharacteristic = GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) {
      return INPUT_OUTPUT_REQUIRED;
    };
    GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemTypeDefault; };
    CreateKernel = [](const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo*) {
      return static_cast<void*>(new Kernel{static_cast<const Probe*>(self)->provider, *api});
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    KernelCompute = [](void* kernel, OrtKernelContext* context) {
      static_cast<Kernel*>(kernel)->compute(*context);
    };
  }

  struct Kernel {
    void compute(OrtKernelContext& context) const {
      const OrtValue* x = nullptr;
      OrtTensorTypeAndShapeInfo* info = nullptr;
      std::array<std::int64_t, 8> shape{};
      std::size_t rank = 0;
      std::size_t size = 0;
      OrtValue* y = nullptr;
      float* from = nullptr;
      float* to = nullptr;
      check(api.KernelContext_GetInput(&context, 0, &x));
      check(api.GetTensorTypeAndShape(x, &info));
      check(api.GetDimensionsCount(info, &rank));
      check(api.GetDimensions(info, shape.data(), rank));
      check(api.GetTensorShapeElementCount(info, &size));
      api.ReleaseTensorTypeAndShapeInfo(info);
      check(api.KernelContext_GetOutput(&context, 0, shape.data(), rank, &y));
      check(api.GetTensorMutableData(const_cast<OrtValue*>(x), reinterpret_cast<void**>(&from)));
      check(api.GetTensorMutableData(y, reinterpret_cast<void**>(&to)));
      addresses.insert(addresses.end(), {from, to});
      if (provider == cpu) {
        for (std::size_t i = 0; i < size; ++i) to[i] = -from[i];
      }
    }

    static void check(const OrtStatus* status) {
      if (status != nullptr) std::abort();
    }

    const char* provider;
    const OrtApi& api;
  };

  static constexpr const char* cpu = "CPUExecutionProvider";
  static constexpr const char* cuda = "CUDAExecutionProvider";

  const char* provider;
};

}  // namespace

/// Copies up to `capacity` addresses, clears the record, and returns the number of recorded
/// addresses.
extern "C" __attribute__((visibility("default"))) std::size_t take_addresses(const void** taken,
                                                                             std::size_t capacity) {
  const std::size_t count = addresses.size();
  for (std::size_t i = 0; i < count && i < capacity; ++i) taken[i] = addresses[i];
  addresses.clear();
  return count;
}

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  static Probe on_cpu(Probe::cpu);
  static Probe on_cuda(Probe::cuda);
  const OrtApi& api = *base->GetApi(16);
  OrtCustomOpDomain* domain = nullptr;  // never released, since sessions use it
  Probe::Kernel::check(api.CreateCustomOpDomain(PROBE_DOMAIN, &domain));
  Probe::Kernel::check(api.CustomOpDomain_Add(domain, &on_cpu));
  Probe::Kernel::check(api.CustomOpDomain_Add(domain, &on_cuda));
  return api.AddCustomOpDomain(options, domain);
}

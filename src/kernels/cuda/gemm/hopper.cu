#include <limits>

#include "cuda/alignment.h"
#include "cuda/gemm/hopper.cuh"
#include "cuda/gemm/hopper.h"

namespace cudarelu::cuda {

namespace {

using hopper::Plan;

bool is_9_0(int device) {
  static DeviceNumbers<2> known;
  const auto number = [&](int index, cudaDeviceAttr attribute) {
    int value = 0;
    const cudaError_t error = known.get(device, index, value, [&](int& number) {
      return cudaDeviceGetAttribute(&number, attribute, device);
    });
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess ? value : -1;
  };
  return number(0, cudaDevAttrComputeCapabilityMajor) == 9 &&
         number(1, cudaDevAttrComputeCapabilityMinor) == 0;
}

template <class P>
Status start(const Call& call, const Gemm& gemm) {
  constexpr int group = 8;
  const auto start_of = [&]<class T>(TypeTag<T>) {
    if (gemm.a_transposed) return hopper::start<T, false, false, P>(call, gemm, group);
    if (gemm.b_transposed) return hopper::start<T, true, true, P>(call, gemm, group);
    return hopper::start<T, true, false, P>(call, gemm, group);
  };
  if (gemm.dtype == DType::float16) return start_of(TypeTag<Half>{});
  return start_of(TypeTag<BFloat16>{});
}

}  // namespace

bool takes_hopper(const Gemm& gemm, int device) {
  if (gemm.dtype != DType::float16 && gemm.dtype != DType::bfloat16) return false;
  if (gemm.a_transposed && gemm.b_transposed) return false;
  constexpr std::int64_t most = std::numeric_limits<int>::max() / 2;  // what coordinates may reach
  for (const std::int64_t size : {gemm.batch, gemm.m, gemm.n, gemm.k}) {
    if (size <= 0 || size > most) return false;
  }
  const auto blocks = [](std::int64_t size) { return (size + 127) / 128; };
  if (blocks(gemm.m) * blocks(gemm.n) > most / gemm.batch) return false;
  for (const std::int64_t row :
       {gemm.a_transposed ? gemm.m : gemm.k, gemm.b_transposed ? gemm.k : gemm.n, gemm.n}) {
    if (row * 2 % vector_bytes != 0) return false;
  }
  for (const void* pointer : {gemm.a, gemm.b, gemm.bias, static_cast<const void*>(gemm.d),
                              static_cast<const void*>(gemm.sum)}) {
    if (misalignment(pointer) != 0) return false;
  }
  return is_9_0(device);
}

Status hopper_gemm(const Call& call, const Gemm& gemm) {
  return start<Plan<128, 256, 4, 2, false>>(call, gemm);
}

}  // namespace cudarelu::cuda

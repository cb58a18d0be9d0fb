// The matrix product of cuBLASLt, bare or with an epilogue, by the fastest of the first eight
// algorithms that its heuristics return. cudarelu.bench.rivals calls it by ctypes.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

struct Product {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t form = nullptr;
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  void* workspace = nullptr;

  int run(const void* x, const void* y, const void* bias, void* z, cudaStream_t stream) const {
    if (bias != nullptr) {
      cublasLtMatmulDescSetAttribute(form, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    }
    const float one = 1;
    const float zero = 0;
    // Row-major data is column-major transposed: multiply the transposes, in reverse order.
    return cublasLtMatmul(handle, form, &one, y, b, x, a, &zero, z, d, z, d, &algorithm, workspace,
                          workspace_bytes, stream);
  }
};

float milliseconds(const Product& product, const void* x, const void* y, const void* bias, void* z,
                   cudaStream_t stream) {
  constexpr int rounds = 5;
  std::array<cudaEvent_t, 2> events{};
  for (cudaEvent_t& event : events) cudaEventCreate(&event);
  std::array<float, rounds> times{};
  for (float& time : times) {
    cudaEventRecord(events[0], stream);
    for (int i = 0; i < 3; ++i) {
      if (product.run(x, y, bias, z, stream) != CUBLAS_STATUS_SUCCESS) return 1e9F;
    }
    cudaEventRecord(events[1], stream);
    cudaEventSynchronize(events[1]);
    cudaEventElapsedTime(&time, events[0], events[1]);
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  std::ranges::nth_element(times, times.begin() + rounds / 2);
  return times[rounds / 2];
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/// Prepares z[i] = x[i] y[i] for each i of the batch, row-major: x is [m, k], y is [k, n] or, with
/// `transposed`, [n, k]. `dtype` is a cudaDataType_t: CUDA_R_32F (in float32, not TF32), CUDA_R_16F
/// or CUDA_R_16BF. `epilogue` is a cublasLtEpilogue_t; `bias` is its bias, [n], or nullptr. Waits
/// for the stream. Returns nullptr if cuBLASLt does not support the product.
void* cublaslt_prepare(int dtype, int epilogue, const void* x, const void* y, const void* bias,
                       void* z, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k,
                       int transposed, cudaStream_t stream) {
  const auto type = static_cast<cudaDataType_t>(dtype);
  auto* product = new Product;
  const cublasOperation_t flip = transposed != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasLtCreate(&product->handle);
  cublasLtMatmulDescCreate(&product->form, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(product->form, CUBLASLT_MATMUL_DESC_TRANSA, &flip, sizeof flip);
  cublasLtMatmulDescSetAttribute(product->form, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                 sizeof epilogue);
  if (bias != nullptr) {  // the heuristics read the pointer
    cublasLtMatmulDescSetAttribute(product->form, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                   sizeof bias);
  }
  cublasLtMatrixLayoutCreate(&product->a, type, k, m, k);
  cublasLtMatrixLayoutCreate(&product->b, type, transposed != 0 ? k : n, transposed != 0 ? n : k,
                             transposed != 0 ? k : n);
  cublasLtMatrixLayoutCreate(&product->d, type, n, m, n);
  const auto count = static_cast<std::int32_t>(batch);
  const auto set_batch = [&](cublasLtMatrixLayout_t layout, std::int64_t stride) {
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                     sizeof count);
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                     sizeof stride);
  };
  set_batch(product->a, m * k);
  set_batch(product->b, k * n);
  set_batch(product->d, m * n);
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulPreferenceCreate(&preference);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace_bytes, sizeof workspace_bytes);
  std::vector<cublasLtMatmulHeuristicResult_t> found(8);
  int usable = 0;
  cublasLtMatmulAlgoGetHeuristic(product->handle, product->form, product->b, product->a, product->d,
                                 product->d, preference, static_cast<int>(found.size()),
                                 found.data(), &usable);
  cublasLtMatmulPreferenceDestroy(preference);
  if (usable == 0 || cudaMalloc(&product->workspace, workspace_bytes) != cudaSuccess) {
    return nullptr;
  }
  float best = 1e9F;
  cublasLtMatmulAlgo_t fastest = found[0].algo;
  for (int round = 0; round < 2; ++round) {  // the first is a warm-up
    best = 1e9F;
    for (int i = 0; i < usable; ++i) {
      product->algorithm = found[static_cast<std::size_t>(i)].algo;
      const float time = milliseconds(*product, x, y, bias, z, stream);
      if (time < best) {
        best = time;
        fastest = product->algorithm;
      }
    }
  }
  product->algorithm = fastest;
  return product;
}

/// Enqueues the product on the stream; returns the cublasStatus_t.
int cublaslt_run(const void* product, const void* x, const void* y, const void* bias, void* z,
                 cudaStream_t stream) {
  return static_cast<const Product*>(product)->run(x, y, bias, z, stream);
}

void cublaslt_destroy(void* product) {
  auto* const own = static_cast<Product*>(product);
  cudaFree(own->workspace);
  cublasLtDestroy(own->handle);
  delete own;
}

}  // extern "C"
#pragma GCC visibility pop

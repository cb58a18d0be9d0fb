#include "cuda/gemm/cublaslt_plan.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cuda/gemm/cublaslt_library.h"
#include "cuda/gemm/tuning.h"
#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/capture.h"
#include "cudarelu/detail/cuda/device.h"

namespace cudarelu::gpu::lt {
namespace {

constexpr std::uint64_t workspace_limit = 32 << 20;  // NVIDIA recommends it for Hopper

/// A cache of this size is cleared: shapes that keep changing must not fill the memory.
constexpr std::size_t max_plans = 1024;

struct HashKey {
  std::size_t operator()(const ProblemKey& key) const {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&key), sizeof(ProblemKey)});
  }
};

template <class Value>
using Cache = std::unordered_map<ProblemKey, Value, HashKey>;

template <class Value>
Value& insert(Cache<Value>& cache, const ProblemKey& key, const Value& value) {
  if (cache.size() >= max_plans) cache.clear();
  return cache.insert_or_assign(key, value).first->second;
}

struct AlgorithmCache {
  std::mutex mutex;
  Cache<Algorithm> known;
};

/// Never destroyed: threads may outlive static objects.
AlgorithmCache& algorithms() {
  static auto& algorithms = *new AlgorithmCache;
  return algorithms;
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return CUDA_R_64F;
    case DType::float16:
      return CUDA_R_16F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cublasComputeType_t compute_type(const ProblemKey& key) {
  if (key.dtype == DType::float64) return CUBLAS_COMPUTE_64F;
  return key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

bool writes_sum(const ProblemKey& key) {
  return (key.epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX;
}

template <class T>
bool set(MatmulPlan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return cublaslt().set_product(&plan.product, attribute, static_cast<const void*>(&value),
                                sizeof(T)) == CUBLAS_STATUS_SUCCESS;
}

bool lay_out(cublasLtMatrixLayoutOpaque_t& layout, const ProblemKey& key, std::int64_t rows,
             std::int64_t columns) {
  const std::int64_t stride = rows * columns;
  const CublasLt& library = cublaslt();
  return library.init_layout(&layout, sizeof layout, data_type(key.dtype),
                             static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                             rows) == CUBLAS_STATUS_SUCCESS &&
         library.set_layout(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &key.batch,
                            sizeof key.batch) == CUBLAS_STATUS_SUCCESS &&
         library.set_layout(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                            sizeof stride) == CUBLAS_STATUS_SUCCESS;
}

/// cuBLASLt's matrices are column-major, so that ours are transposed and d^T = b^T a^T: b comes
/// first. cuBLASLt adds a bias to each column of d^T, which is a row of d.
bool describe(MatmulPlan& plan, const ProblemKey& key, const Gemm& gemm) {
  const cublasOperation_t op_a = key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const std::int64_t sum_stride = gemm.m * gemm.n;
  return cublaslt().init_product(&plan.product, sizeof plan.product, compute_type(key),
                                 key.dtype == DType::float64 ? CUDA_R_64F : CUDA_R_32F) ==
             CUBLAS_STATUS_SUCCESS &&
         set(plan, CUBLASLT_MATMUL_DESC_TRANSA, op_b) &&
         set(plan, CUBLASLT_MATMUL_DESC_TRANSB, op_a) &&
         set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, key.epilogue) &&
         (!writes_sum(key) ||
          (set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm.n) &&
           set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, sum_stride))) &&
         set_pointers(plan, key, gemm) &&
         lay_out(plan.a, key, key.a_transposed ? gemm.m : gemm.k,
                 key.a_transposed ? gemm.k : gemm.m) &&
         lay_out(plan.b, key, key.b_transposed ? gemm.k : gemm.n,
                 key.b_transposed ? gemm.n : gemm.k) &&
         lay_out(plan.d, key, gemm.n, gemm.m);
}

/// The file for the model of the device and the version of the library, which define algorithms.
std::filesystem::path tuning_file(const ProblemKey& key) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, key.device) != cudaSuccess) (void)cudaGetLastError();
  std::string name = properties.name;
  std::ranges::replace_if(name, [](char c) { return c == ' ' || c == '/'; }, '_');
  return tuning_folder() / (name + "-cublaslt-" + std::to_string(cublaslt().version()) + ".txt");
}

/// The name of a key in the file.
std::string name_in_file(const ProblemKey& key) {
  std::ostringstream text;
  text << name_of(key.dtype) << (key.tf32 ? " tf32 " : " ") << key.batch << 'x' << key.m << 'x'
       << key.n << 'x' << key.k << (key.a_transposed ? " t" : " n")
       << (key.b_transposed ? "t" : "n") << " epilogue " << key.epilogue << " alignments "
       << +key.a_alignment << ' ' << +key.b_alignment << ' ' << +key.rest_alignment
       << (key.workspace ? "" : " without workspace");
  return text.str();
}

std::string text_of(const cublasLtMatmulAlgo_t& algo) {
  std::ostringstream text;
  for (const std::uint64_t word : algo.data) text << std::hex << word << ' ';
  return text.str();
}

std::uint32_t attribute_of(const cublasLtMatmulAlgo_t& algo,
                           cublasLtMatmulAlgoConfigAttributes_t attribute) {
  std::uint32_t value = 0;
  std::size_t written = 0;
  const cublasStatus_t status =
      cublaslt().get_algorithm(&algo, attribute, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : 0;
}

Algorithm algorithm_of(const cublasLtMatmulHeuristicResult_t& result, bool measured) {
  const bool splits_k = attribute_of(result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) !=
                        CUBLASLT_REDUCTION_SCHEME_NONE;
  return {true, measured, splits_k, result.algo, result.workspaceSize};
}

/// Whether the bias is added to the sum of the parts of k before it is rounded to 16 bits. Of the
/// algorithms that split k with cuBLASLt 13.1 on an H100 and an H200, those of this ID always do
/// it.
bool adds_bias_to_exact_sum(const Algorithm& algorithm) {
  constexpr std::uint32_t exact = 66;
  return !algorithm.splits_k ||
         (CUBLAS_VER_MAJOR >= 13 && attribute_of(algorithm.algo, CUBLASLT_ALGO_CONFIG_ID) == exact);
}

/// The algorithm for a plan in the file of measurements, if the library accepts it.
std::optional<Algorithm> recorded_algorithm(MatmulPlan& plan, const ProblemKey& key) {
  if (tuning_folder().empty()) return {};
  const TuningRecords records = read_tuning(tuning_file(key));
  const auto record = records.find(name_in_file(key));
  if (record == records.end()) return {};
  cublasLtMatmulAlgo_t algo{};
  std::istringstream words(record->second);
  for (std::uint64_t& word : algo.data) words >> std::hex >> word;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulHeuristicResult_t result{};
  if (!words || handle_of(key.device, handle) != CUBLAS_STATUS_SUCCESS ||
      cublaslt().check(handle, &plan.product, &plan.b, &plan.a, &plan.d, &plan.d, &algo, &result) !=
          CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  result.algo = algo;
  return algorithm_of(result, true);
}

/// The algorithms of the heuristics with any of the `reductions`, as a mask.
std::vector<Algorithm> ask_heuristics(MatmulPlan& plan, const ProblemKey& key, int count,
                                      std::uint32_t reductions) {
  const CublasLt& library = cublaslt();
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulPreferenceOpaque_t preference{};
  if (handle_of(key.device, handle) != CUBLAS_STATUS_SUCCESS ||
      library.init_preference(&preference, sizeof preference) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  bool complete = true;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    complete &= library.set_preference(&preference, attribute, &value, sizeof value) ==
                CUBLAS_STATUS_SUCCESS;
  };
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, key.workspace ? workspace_limit : 0);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{key.b_alignment});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{key.a_alignment});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{key.rest_alignment});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{key.rest_alignment});
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
  int found = 0;
  if (!complete ||
      library.heuristics(handle, &plan.product, &plan.b, &plan.a, &plan.d, &plan.d, &preference,
                         count, results.data(), &found) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  std::vector<Algorithm> algorithms;
  for (const auto& result : std::span(results).first(static_cast<std::size_t>(found))) {
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(algorithm_of(result, false));
  }
  return algorithms;
}

Algorithm choose(MatmulPlan& plan, const ProblemKey& key) {
  if (const auto recorded = recorded_algorithm(plan, key)) return *recorded;
  const std::vector<Algorithm> first = ask_heuristics(plan, key, 1);
  return first.empty() ? Algorithm() : first.front();
}

}  // namespace

cublasStatus_t handle_of(int device, cublasLtHandle_t& handle) {
  // Handles are never destroyed: when the process ends, CUDA may be unloaded first.
  static PerDevice<cublasLtHandle_t> handles;
  if (device >= max_devices) return CUBLAS_STATUS_NOT_SUPPORTED;
  return handles.get(device, 0, handle,
                     [](cublasLtHandle_t& created) { return cublaslt().create(&created); });
}

bool is_aligned(const ProblemKey& key) {
  const auto elements = static_cast<std::int32_t>(vector_bytes / size_of(key.dtype));
  const std::int32_t row_of_a = key.a_transposed ? key.m : key.k;
  const std::int32_t row_of_b = key.b_transposed ? key.k : key.n;
  return row_of_a % elements == 0 && row_of_b % elements == 0 && key.n % elements == 0 &&
         std::min({key.a_alignment, key.b_alignment, key.rest_alignment}) >= vector_bytes;
}

bool set_pointers(MatmulPlan& plan, const ProblemKey& key, const Gemm& gemm) {
  return (gemm.bias == nullptr || set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias)) &&
         (!writes_sum(key) || set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gemm.sum));
}

std::vector<Algorithm> ask_heuristics(MatmulPlan& plan, const ProblemKey& key, int count) {
  // The parts of a float16 or bfloat16 product are added in float32.
  const bool is_half = size_of(key.dtype) == 2;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (!is_half) reductions |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
  std::vector<Algorithm> algorithms = ask_heuristics(plan, key, count, reductions);
  if (!is_half || (key.epilogue & CUBLASLT_EPILOGUE_BIAS) == 0) return algorithms;
  std::erase_if(algorithms,
                [](const Algorithm& algorithm) { return !adds_bias_to_exact_sum(algorithm); });
  if (!algorithms.empty()) return algorithms;
  return ask_heuristics(plan, key, count, CUBLASLT_REDUCTION_SCHEME_NONE);
}

Algorithm known_algorithm(const ProblemKey& key) {
  const std::scoped_lock lock(algorithms().mutex);
  const auto known = algorithms().known.find(key);
  return known == algorithms().known.end() ? Algorithm() : known->second;
}

Status record_algorithm(const ProblemKey& key, const Algorithm& algorithm) {
  Status status = write_tuning(tuning_file(key), name_in_file(key), text_of(algorithm.algo));
  if (!status.ok()) return status;
  const std::scoped_lock lock(algorithms().mutex);
  insert(algorithms().known, key, algorithm);
  return {};
}

MatmulPlan& plan_for(const ProblemKey& key, const Gemm& gemm) {
  thread_local Cache<MatmulPlan> plans;
  if (const auto known = plans.find(key); known != plans.end()) return known->second;

  const RelaxedCapture relaxed;  // the first question makes a handle and loads code
  cublasLtHandle_t handle = nullptr;
  if (handle_of(key.device, handle) != CUBLAS_STATUS_SUCCESS) {
    // For example out of memory: a later call asks again.
    thread_local MatmulPlan without_algorithm;
    return without_algorithm = {};
  }
  MatmulPlan plan;
  if (describe(plan, key, gemm)) {
    const std::scoped_lock lock(algorithms().mutex);
    auto& all = algorithms().known;
    const auto known = all.find(key);
    plan.algorithm = known == all.end() ? insert(all, key, choose(plan, key)) : known->second;
  }
  return insert(plans, key, plan);
}

}  // namespace cudarelu::gpu::lt

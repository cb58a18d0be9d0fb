#include "cuda/gemm/cublaslt.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "cuda/gemm/activate.h"
#include "cuda/gemm/cublaslt_library.h"
#include "cuda/gemm/cublaslt_plan.h"
#include "cuda/gemm/tuning.h"
#include "cudarelu/detail/cuda/capture.h"
#include "cudarelu/detail/cuda/check.h"

namespace cudarelu::gpu {
namespace {

/// How a product is computed: in one pass, or with the activation and the other matrix in a second
/// pass.
struct Passes {
  cublasLtEpilogue_t epilogue;
  void* target;  // output of the first pass
  bool activate;
};

/// The passes, and the plan of the first one, which may have no algorithm.
struct Strategy {
  Passes passes;
  lt::ProblemKey key;
  lt::MatmulPlan* plan;
};

cublasLtEpilogue_t with_bias(const Gemm& gemm, int epilogue) {
  if (gemm.bias == nullptr) return static_cast<cublasLtEpilogue_t>(epilogue);
  // CUBLASLT_EPILOGUE_DEFAULT is a bit that is not combined with others.
  const int others = epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 0 : epilogue;
  return static_cast<cublasLtEpilogue_t>(others | CUBLASLT_EPILOGUE_BIAS);
}

Passes in_two_passes(const Gemm& gemm) {
  return {with_bias(gemm, CUBLASLT_EPILOGUE_DEFAULT), gemm.sum == nullptr ? gemm.d : gemm.sum,
          gemm.activation != Activation::none || gemm.sum != nullptr};
}

/// Whether the ReLU of cuBLASLt's epilogue keeps NaN. On an H100, it makes 0 of NaN for k = 1, and
/// in halves for operands that are not aligned, for which it has other kernels.
bool relu_keeps_nan(const lt::ProblemKey& key) {
  return key.k > 1 && (size_of(key.dtype) > 2 || is_aligned(key));
}

/// The GELU of cuBLASLt's epilogue is the one with tanh, with an error of 5e-6 in float32 and 3e-10
/// in float64. A second pass, as fast on an H200, is more precise. For operands that are not
/// aligned, the epilogue gives results as if the product were rounded before the bias is added.
Passes in_one_pass(const Gemm& gemm, const lt::ProblemKey& key) {
  const bool tanh =
      gemm.activation == Activation::gelu_tanh && size_of(gemm.dtype) == 2 && is_aligned(key);
  const bool relu = gemm.activation == Activation::relu && relu_keeps_nan(key);
  if (gemm.sum == nullptr) {
    if (tanh) return {with_bias(gemm, CUBLASLT_EPILOGUE_GELU), gemm.d, false};
    if (relu) return {with_bias(gemm, CUBLASLT_EPILOGUE_RELU), gemm.d, false};
  }
  if (tanh) return {with_bias(gemm, CUBLASLT_EPILOGUE_GELU_AUX), gemm.d, false};
  return in_two_passes(gemm);
}

/// The largest power of two, up to 128, that divides all addresses.
template <class... Pointers>
std::uint8_t alignment_of(Pointers... pointers) {
  const auto bits = (reinterpret_cast<std::uintptr_t>(pointers) | ... | std::uintptr_t{128});
  return static_cast<std::uint8_t>(bits & -bits);
}

/// The key of all strategies for a product, except the epilogue.
lt::ProblemKey key_of(const Gemm& gemm, int device) {
  return {.m = static_cast<std::int32_t>(gemm.m),
          .n = static_cast<std::int32_t>(gemm.n),
          .k = static_cast<std::int32_t>(gemm.k),
          .batch = static_cast<std::int32_t>(gemm.batch),
          .device = device,
          .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
          .dtype = gemm.dtype,
          .a_transposed = gemm.a_transposed,
          .b_transposed = gemm.b_transposed,
          .tf32 = gemm.allow_tf32 && gemm.dtype == DType::float32,
          .workspace = true,
          .a_alignment = alignment_of(gemm.a),
          .b_alignment = alignment_of(gemm.b),
          .rest_alignment = alignment_of(gemm.d, gemm.bias, gemm.sum, gemm.other)};
}

/// How to compute a product: in one pass if cuBLASLt has an algorithm for it, else in two.
Strategy strategy_for(const Gemm& gemm, int device) {
  lt::ProblemKey key = key_of(gemm, device);
  const auto strategy_by = [&](const Passes& passes) {
    key.epilogue = passes.epilogue;
    return Strategy{passes, key, &lt::plan_for(key, gemm)};
  };
  const Strategy strategy = strategy_by(in_one_pass(gemm, key));
  return strategy.plan->algorithm.found ? strategy : strategy_by(in_two_passes(gemm));
}

Status status_of(const Call& call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {Status::Code::device_failure,
          std::string(call.op) + ": cuBLASLt: " + cublaslt().describe(status)};
}

/// Runs the first pass with an algorithm for its plan.
cublasStatus_t multiply(const Call& call, const Gemm& gemm, const Strategy& strategy,
                        const lt::Algorithm& algorithm, void* workspace) {
  cublasLtHandle_t handle = nullptr;
  if (const auto status = lt::handle_of(call.execution.device_index, handle);
      status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  lt::MatmulPlan& plan = *strategy.plan;
  if (!lt::set_pointers(plan, strategy.key, gemm)) return CUBLAS_STATUS_INTERNAL_ERROR;
  const struct {
    float in_float;
    double in_double;
  } one{1, 1}, zero{0, 0};
  const bool in_double = gemm.dtype == DType::float64;
  const auto scalar = [&](const auto& number) -> const void* {
    return in_double ? static_cast<const void*>(&number.in_double) : &number.in_float;
  };
  const bool adds = adds_other(gemm);
  return cublaslt().multiply(handle, &plan.product, scalar(one), gemm.b, &plan.b, gemm.a, &plan.a,
                             scalar(adds ? one : zero), adds ? gemm.other : strategy.passes.target,
                             &plan.d, strategy.passes.target, &plan.d, &algorithm.algo, workspace,
                             algorithm.workspace, static_cast<cudaStream_t>(call.execution.stream));
}

/// Measures the first algorithms of the heuristics and chooses the fastest, for the process and in
/// a file. This waits for the device, so that it does nothing during a stream capture.
Status tune(const Call& call, const Gemm& gemm, const Strategy& strategy) {
  constexpr int limit = 8;
  static std::mutex one_at_a_time;  // concurrent measurements would disturb each other
  const std::scoped_lock lock(one_at_a_time);
  if (const lt::Algorithm known = lt::known_algorithm(strategy.key); known.measured) {
    strategy.plan->algorithm = known;
    return {};
  }
  auto* const stream = static_cast<cudaStream_t>(call.execution.stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (Status status = check(call, cudaStreamIsCapturing(stream, &capture)); !status.ok()) {
    return status;
  }
  if (capture != cudaStreamCaptureStatusNone) return {};

  const RelaxedCapture relaxed;  // another thread may capture a stream
  std::vector<lt::Algorithm> algorithms = lt::ask_heuristics(*strategy.plan, strategy.key, limit);
  std::size_t bytes = 0;
  for (const lt::Algorithm& algorithm : algorithms) bytes = std::max(bytes, algorithm.workspace);
  void* const workspace = bytes > 0 ? call.execution.allocate(bytes) : nullptr;
  if (bytes > 0 && workspace == nullptr) return {};
  std::erase_if(algorithms, [&](const lt::Algorithm& algorithm) {
    return multiply(call, gemm, strategy, algorithm, workspace) != CUBLAS_STATUS_SUCCESS;
  });
  if (algorithms.empty()) return {};
  const auto run = [&](std::size_t i) {
    const bool ran =
        multiply(call, gemm, strategy, algorithms[i], workspace) == CUBLAS_STATUS_SUCCESS;
    return ran ? cudaSuccess : cudaErrorUnknown;
  };
  std::size_t best = 0;
  if (Status status = check(call, find_fastest(stream, algorithms.size(), run, best));
      !status.ok()) {
    return status;
  }
  lt::Algorithm& algorithm = algorithms[best];
  algorithm.measured = true;
  if (Status status = lt::record_algorithm(strategy.key, algorithm); !status.ok()) {
    return {status.code(), std::string(call.op) + ": " + status.message()};
  }
  strategy.plan->algorithm = algorithm;
  return {};
}

}  // namespace

std::string cublaslt_problem() { return cublaslt().problem; }

bool takes_cublaslt(const Gemm& gemm, int device) {
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t size : {gemm.batch, gemm.m, gemm.n, gemm.k}) {
    if (size < 1 || size > limit) return false;
  }
  if (!floating_types.contains(gemm.dtype) || !cublaslt().problem.empty()) return false;
  return strategy_for(gemm, device).plan->algorithm.found;
}

bool suits_cublaslt(const Gemm& gemm) { return lt::is_aligned(key_of(gemm, 0)); }

Status cublaslt_gemm(const Call& call, const Gemm& gemm) {
  Strategy strategy = strategy_for(gemm, call.execution.device_index);
  if (!tuning_folder().empty() && !strategy.plan->algorithm.measured) {
    if (Status status = tune(call, gemm, strategy); !status.ok()) return status;
  }
  void* workspace = nullptr;
  if (strategy.plan->algorithm.workspace > 0) {
    workspace = call.execution.allocate(strategy.plan->algorithm.workspace);
    if (workspace == nullptr) {
      strategy.key.workspace = false;
      strategy.plan = &lt::plan_for(strategy.key, gemm);
    }
  }
  if (!strategy.plan->algorithm.found) {
    return {Status::Code::out_of_memory,
            std::string(call.op) + ": cuBLASLt has no algorithm without workspace"};
  }
  Status status =
      status_of(call, multiply(call, gemm, strategy, strategy.plan->algorithm, workspace));
  if (!status.ok()) return status;
  const void* const x = strategy.passes.target;
  if (gemm.other != nullptr && !adds_other(gemm)) {
    const Activation left = strategy.passes.activate ? gemm.activation : Activation::none;
    return activate_and_combine(call, gemm, left, x);
  }
  if (!strategy.passes.activate) return status;
  return activate(call, gemm.activation, gemm.dtype, gemm.batch * gemm.m * gemm.n, x, gemm.d);
}

}  // namespace cudarelu::gpu

#include "cuda/gemm/gemm.h"

#include <array>
#include <cstdlib>
#include <string>

#include "cuda/gemm/conditions.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/fallback_gemm.h"
#include "cuda/gemm/few_rows_gemm.h"
#include "cuda/gemm/simt_gemm.h"
#include "cuda/gemm/sm80_gemm.h"
#include "cuda/gemm/sm90_gemm.h"

namespace cudarelu::gpu {
namespace {

/// How to multiply float32 if the host does not allow TF32; read at the first product.
struct Float32Matmul {
  std::string text = value_of("CUDARELU_FLOAT32_MATMUL");
  bool tf32x3 = text == "tf32x3";
  bool is_known = tf32x3 || text.empty() || text == "ieee";

 private:
  static std::string value_of(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  }
};

const Float32Matmul& float32_matmul() {
  static const Float32Matmul value;
  return value;
}

bool wants_tf32x3(const Gemm& gemm, int /*device*/) {
  return gemm.dtype == DType::float32 && !gemm.allow_tf32 && float32_matmul().tf32x3;
}

bool always(const Gemm& /*gemm*/, int /*device*/) { return true; }

/// An engine, the products that it can compute, and a condition for its use.
struct Engine {
  bool (*takes)(const Gemm&, int device);
  bool (*is_wanted)(const Gemm&, int device);
  Status (*run)(const Call&, const Gemm&);
};

/// The first engine that meets both conditions runs a product; fallback_gemm() runs all others.
constexpr std::array engines{
    Engine{takes_few_rows, prefers_few_rows, few_rows_gemm},
    Engine{takes_sm90, prefers_sm90, sm90_gemm},
    Engine{takes_sm80, wants_tf32x3, sm80_gemm},
    Engine{takes_simt, prefers_simt, simt_gemm},
    Engine{takes_cublaslt, always, cublaslt_gemm},
    // Without cuBLASLt, or if it has no algorithm for the product:
    Engine{takes_few_rows, has_few_rows, few_rows_gemm},
    Engine{takes_sm90, always, sm90_gemm},
    Engine{takes_sm80, is_half, sm80_gemm},
    Engine{takes_simt, always, simt_gemm},
};

}  // namespace

Status gemm(const Call& call, Gemm gemm) {
  if (gemm.batch == 0 || gemm.m == 0 || gemm.n == 0) return {};
  gemm.allow_tf32 = call.execution.allow_tf32();
  if (gemm.dtype == DType::float32 && !float32_matmul().is_known) {
    return {Status::Code::invalid_argument, std::string(call.op) + ": CUDARELU_FLOAT32_MATMUL is " +
                                                float32_matmul().text +
                                                "; it must be ieee or tf32x3, or be unset"};
  }
  for (const Engine& engine : engines) {
    const int device = call.execution.device_index;
    if (engine.is_wanted(gemm, device) && engine.takes(gemm, device)) {
      return engine.run(call, gemm);
    }
  }
  return fallback_gemm(call, gemm);
}

}  // namespace cudarelu::gpu

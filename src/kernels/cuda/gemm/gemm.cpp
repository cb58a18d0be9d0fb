#include "cuda/gemm/gemm.h"

#include <array>
#include <cstdlib>
#include <string>

#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/float32.h"
#include "cuda/gemm/hopper.h"
#include "cuda/gemm/mma.h"
#include "cuda/gemm/simple.h"
#include "cuda/gemm/skinny.h"

namespace cudarelu::cuda {
namespace {

bool has_few_rows(const Gemm& gemm) { return gemm.m <= 64; }

/// Whether cuBLASLt has no epilogue for the product, in any alignment.
bool lacks_epilogue(const Gemm& gemm) {
  return gemm.activation == Activation::gelu_erf || gemm.activation == Activation::silu ||
         (gemm.other != nullptr && !adds_other(gemm));
}

/// Whether hopper_gemm() is at least as fast as the first choice of cuBLASLt's heuristics, measured
/// on an H200. It has the epilogues of ops; for small results, a second step takes less time
/// (H100). Its tiles have 128 rows, so that it computes at least twice as much as few rows need.
bool prefers_hopper(const Gemm& gemm) {
  if (has_few_rows(gemm)) return false;
  if (lacks_epilogue(gemm)) return gemm.m * gemm.n >= 3 << 19;
  if (gemm.a_transposed) return false;
  // For a small k, reading and writing take longer than multiplying.
  if (gemm.batch > 1) return gemm.k <= 128 && gemm.m >= 128 && gemm.n >= 128;
  return gemm.b_transposed && gemm.m * gemm.n >= std::int64_t{1} << 22;
}

bool is_half(const Gemm& gemm) { return size_of(gemm.dtype) == 2; }

/// The same for skinny_gemm(), on an H100 and an H200. More rows than a block has are tiles; their
/// blocks, of 64 rows and 32 columns, take too long if there are more than multiprocessors, or if k
/// is long for each of them. With many columns in 16 bits, cuBLASLt reads x less often. In float32
/// with a long k, it is as fast for one row, and divides k into more parts where there are few
/// columns. It may use tensor cores with TF32.
bool prefers_skinny(const Gemm& gemm) {
  const std::int64_t blocks = (gemm.m + 63) / 64 * ((gemm.n + 31) / 32);
  if (!has_few_rows(gemm)) return blocks <= 128 && gemm.k * blocks <= 3 << 16;
  if (is_half(gemm)) {
    if (blocks <= 128 || !suits_cublaslt(gemm)) return true;
    const std::int64_t rows = lacks_epilogue(gemm) ? 32 : 16;
    return gemm.m <= (gemm.n <= 16384 ? 2 * rows : rows);
  }
  if (gemm.k <= gemm.n) return true;
  if (gemm.m == 1) return false;
  if (gemm.m <= 32 && gemm.n <= 1024 && gemm.k <= 4 * gemm.n) return true;
  const bool few_columns = gemm.m <= 32 ? gemm.n <= 4096 : gemm.n <= 2048 && gemm.k > 1024;
  return few_columns && gemm.n >= 256 && gemm.k <= 16 * gemm.n && !gemm.allow_tf32;
}

/// How to multiply float32 if the host does not allow TF32; read at the first product.
struct Float32Matmul {
  std::string said = value_of("CUDARELU_FLOAT32_MATMUL");
  bool tf32x3 = said == "tf32x3";
  bool is_known = tf32x3 || said.empty() || said == "ieee";

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

bool wants_tf32x3(const Gemm& gemm) {
  return gemm.dtype == DType::float32 && !gemm.allow_tf32 && float32_matmul().tf32x3;
}

bool always(const Gemm& /*gemm*/) { return true; }

/// An engine, the products that it can compute, and a condition for its use.
struct Engine {
  bool (*takes)(const Gemm&, int device);
  bool (*is_wanted)(const Gemm&);
  Status (*run)(const Call&, const Gemm&);
};

/// The first engine that meets both conditions runs a product; simple_gemm() runs all others.
constexpr std::array engines{
    Engine{takes_skinny, prefers_skinny, skinny_gemm},
    Engine{takes_hopper, prefers_hopper, hopper_gemm},
    Engine{takes_mma, wants_tf32x3, mma_gemm},
    Engine{prefers_float32, always, float32_gemm},
    Engine{takes_cublaslt, always, cublaslt_gemm},
    // Without cuBLASLt, or if it has no algorithm for the product:
    Engine{takes_skinny, has_few_rows, skinny_gemm},
    Engine{takes_hopper, always, hopper_gemm},
    Engine{takes_mma, is_half, mma_gemm},
    Engine{takes_float32, always, float32_gemm},
};

}  // namespace

Status gemm(const Call& call, Gemm gemm) {
  if (gemm.batch == 0 || gemm.m == 0 || gemm.n == 0) return {};
  gemm.allow_tf32 = call.execution.allow_tf32();
  if (gemm.dtype == DType::float32 && !float32_matmul().is_known) {
    return {Status::Code::invalid_argument, std::string(call.op) + ": CUDARELU_FLOAT32_MATMUL is " +
                                                float32_matmul().said +
                                                "; it must be ieee or tf32x3, or be unset"};
  }
  for (const Engine& engine : engines) {
    if (engine.is_wanted(gemm) && engine.takes(gemm, call.execution.device_index)) {
      return engine.run(call, gemm);
    }
  }
  return simple_gemm(call, gemm);
}

}  // namespace cudarelu::cuda

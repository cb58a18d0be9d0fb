#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/gemm/conditions.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/sm90_gemm.cuh"
#include "cuda/gemm/sm90_gemm.h"
#include "cudarelu/detail/cuda/alignment.h"

namespace cudarelu::gpu {

namespace {

using sm90::Sm90Config;

using Tall = Sm90Config<128, 192, 4, true>;
using Wide = Sm90Config<128, 256, 4, false>;
using Small = Sm90Config<128, 128, 5, true>;

/// An estimate of the cycles of a product. Small tiles read more, which costs power and clock rate.
template <class P>
double cycles(const Gemm& gemm, int multiprocessors) {
  constexpr double epilogue = 4000;
  constexpr double reading = P::columns < 192 ? 1.1 : 1.0;
  const double tiles = static_cast<double>(gemm.batch) * sm90::ceil(gemm.m, P::rows) *
                       sm90::ceil(gemm.n, P::columns);
  const double waves = std::ceil(tiles / multiprocessors);
  const double multiplying = sm90::ceil(gemm.k, P::depth) * (P::rows * P::columns / 32) * reading;
  return waves * multiplying + (P::pingpong ? 1 : waves) * epilogue;
}

template <class P>
Status start(const Call& call, const Gemm& gemm, int multiprocessors) {
  const auto start_of = [&]<class T>(TypeTag<T>) {
    if (gemm.other != nullptr)
      return sm90::start<T, true, true, true, P>(call, gemm, multiprocessors);
    if (gemm.a_transposed)
      return sm90::start<T, false, false, false, P>(call, gemm, multiprocessors);
    if (gemm.b_transposed) return sm90::start<T, true, true, false, P>(call, gemm, multiprocessors);
    return sm90::start<T, true, false, false, P>(call, gemm, multiprocessors);
  };
  if (gemm.dtype == DType::float16) return start_of(TypeTag<Half>{});
  return start_of(TypeTag<BFloat16>{});
}

}  // namespace

bool takes_sm90(const Gemm& gemm, int device) {
  if (gemm.dtype != DType::float16 && gemm.dtype != DType::bfloat16) return false;
  if (gemm.a_transposed && gemm.b_transposed) return false;
  // Only linear layers have more than a bias: the kernels for it have their layout.
  const bool of_linear_layer = !gemm.a_transposed && gemm.b_transposed;
  const bool has_other = gemm.other != nullptr;
  if (!of_linear_layer && (gemm.activation != Activation::none || has_other)) return false;
  if (gemm.sum != nullptr && !sm90::can_write_sums(of_linear_layer, gemm.activation, has_other)) {
    return false;
  }
  constexpr std::int64_t limit = std::numeric_limits<int>::max() / 2;  // the limit of coordinates
  for (const std::int64_t size : {gemm.batch, gemm.m, gemm.n, gemm.k}) {
    if (size <= 0 || size > limit) return false;
  }
  const auto blocks = [](std::int64_t size) { return (size + 127) / 128; };
  if (blocks(gemm.m) * blocks(gemm.n) > limit / gemm.batch) return false;
  for (const std::int64_t row :
       {gemm.a_transposed ? gemm.m : gemm.k, gemm.b_transposed ? gemm.k : gemm.n, gemm.n}) {
    if (row * 2 % vector_bytes != 0) return false;
  }
  for (const void* pointer :
       {gemm.a, gemm.b, gemm.bias, gemm.other, static_cast<const void*>(gemm.d),
        static_cast<const void*>(gemm.sum)}) {
    if (misalignment(pointer) != 0) return false;
  }
  return number_of<cudaDevAttrComputeCapabilityMajor>(device) == 9 &&
         number_of<cudaDevAttrComputeCapabilityMinor>(device) == 0;
}

bool prefers_sm90(const Gemm& gemm, int /*device*/) {
  // A tile has 128 rows, so it would compute at least twice as much as few rows need.
  if (has_few_rows(gemm)) return false;
  // For small results, a second pass after cuBLASLt takes less time (H100).
  if (lacks_epilogue(gemm)) return gemm.m * gemm.n >= 3 << 19;
  if (gemm.a_transposed) return false;
  // For a small k, reading and writing take longer than multiplying.
  if (gemm.batch > 1) return gemm.k <= 128 && gemm.m >= 128 && gemm.n >= 128;
  return gemm.b_transposed && gemm.m * gemm.n >= std::int64_t{1} << 22;
}

Status sm90_gemm(const Call& call, const Gemm& gemm) {
  const int multiprocessors =
      number_of<cudaDevAttrMultiProcessorCount>(call.execution.device_index);
  const double tall = cycles<Tall>(gemm, multiprocessors);
  const double wide = cycles<Wide>(gemm, multiprocessors);
  const double small = cycles<Small>(gemm, multiprocessors);
  if (small < std::min(tall, wide)) return start<Small>(call, gemm, multiprocessors);
  if (tall < wide) return start<Tall>(call, gemm, multiprocessors);
  return start<Wide>(call, gemm, multiprocessors);
}

}  // namespace cudarelu::gpu

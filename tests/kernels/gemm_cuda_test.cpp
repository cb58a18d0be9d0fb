// Tests of the matrix products for few rows, for float32 and with mma.sync, compared with float64,
// between canaries.
#include <cmath>

#include "activated.h"
#include "cuda/gemm/few_rows_gemm.h"
#include "cuda/gemm/simt_gemm.h"
#include "cuda/gemm/sm80_gemm.h"
#include "cuda_device.h"

namespace cudarelu::testing {
namespace {

constexpr DTypeSet gemm_types = DTypeSet::of({DType::float32, DType::float16, DType::bfloat16});

struct Case {
  std::int64_t m, n, k;
  std::int64_t batch = 1;
  bool a_transposed = false;
  bool b_transposed = true;
  bool bias = true;
  bool sum = true;
  Activation activation = Activation::none;
  std::size_t offset = 0;  // of all pointers, in elements
  std::optional<Combine> combine = std::nullopt;
};

/// The name of a test of the case: `m9_n5002_k72_batch2_no_bias_silu`. The layout is left out.
void PrintTo(const Case& c, std::ostream* out) {
  *out << 'm' << c.m << "_n" << c.n << "_k" << c.k;
  if (c.batch != 1) *out << "_batch" << c.batch;
  if (!c.bias) *out << "_no_bias";
  if (!c.sum) *out << "_no_sum";
  if (c.activation != Activation::none) *out << '_' << name_of(c.activation);
  if (c.offset != 0) *out << "_offset" << c.offset;
  if (c.combine) *out << '_' << name_of(*c.combine);
}

constexpr std::array dtypes{DType::float32, DType::float16, DType::bfloat16};

constexpr std::string_view layout_of(const Case& c) {
  if (c.a_transposed) return c.b_transposed ? "tt" : "tn";
  return c.b_transposed ? "nt" : "nn";
}

/// The largest error of k additions in float32 and of rounding the result once.
double tolerance(DType dtype, std::int64_t k, double value) {
  const double rounding = dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-11 : 0;
  return 2e-6 + 5e-7 * std::sqrt(static_cast<double>(k)) + (rounding + 1e-6) * std::abs(value);
}

class GemmOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "needs CUDA: no device on this machine";
  }

  GuardedTensor random_tensor(DType dtype, Sizes shape, std::size_t offset, double scale) {
    GuardedTensor tensor(dtype, std::move(shape), offset);
    std::normal_distribution<float> normal(0, static_cast<float>(scale));
    (void)visit_dtype<gemm_types>(dtype, [&]<class T>(TypeTag<T>) {
      const TensorView view = tensor.view();
      for (std::int64_t i = 0; i < view.size(); ++i) {
        static_cast<T*>(view.data)[i] = store<T>(normal(random_));
      }
      return Status();
    });
    return tensor;
  }

  static std::vector<double> values(GuardedTensor& tensor) {
    const TensorView view = tensor.view();
    std::vector<double> result(static_cast<std::size_t>(view.size()));
    (void)visit_dtype<gemm_types>(view.dtype, [&]<class T>(TypeTag<T>) {
      const auto* const data = static_cast<const T*>(view.data);
      for (std::size_t i = 0; i < result.size(); ++i) result[i] = load(data[i]);
      return Status();
    });
    return result;
  }

  /// Runs the case on an engine and compares.
  template <class Takes, class Run>
  void expect_right(DType dtype, const Case& c, const Takes& takes, const Run& run) {
    SCOPED_TRACE(::testing::Message()
                 << name_of(dtype) << ' ' << layout_of(c) << ' ' << ::testing::PrintToString(c));
    const double scale = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(c.k, 1)));
    GuardedTensor a = random_tensor(dtype, {c.batch, c.m, c.k}, c.offset, 1);
    GuardedTensor b = random_tensor(dtype, {c.batch, c.k, c.n}, c.offset, scale);
    GuardedTensor bias = random_tensor(dtype, {c.n}, c.offset, 1);
    GuardedTensor other = random_tensor(dtype, {c.batch, c.m, c.n}, c.offset, 1);
    GuardedTensor d(dtype, {c.batch, c.m, c.n}, c.offset);
    GuardedTensor sum(dtype, {c.batch, c.m, c.n}, c.offset);
    DeviceTensor device_a(a);
    DeviceTensor device_b(b);
    DeviceTensor device_bias(bias);
    DeviceTensor device_other(other);
    DeviceTensor device_d(d);
    DeviceTensor device_sum(sum);
    Gemm gemm{dtype,
              c.batch,
              c.m,
              c.n,
              c.k,
              device_a.view().data,
              device_b.view().data,
              device_d.view().data};
    gemm.a_transposed = c.a_transposed;
    gemm.b_transposed = c.b_transposed;
    if (c.bias) gemm.bias = device_bias.view().data;
    if (c.sum) gemm.sum = device_sum.view().data;
    gemm.activation = c.activation;
    if (c.combine) {
      gemm.other = device_other.view().data;
      gemm.combine = *c.combine;
    }
    ASSERT_TRUE(takes(gemm, 0));
    CudaExecution execution;
    const Call call{"relu", {}, {}, {}, execution};
    const Status status = run(call, gemm);
    ASSERT_TRUE(status.ok()) << status.message();
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
    device_d.download();
    device_sum.download();
    ASSERT_TRUE(d.intact() && sum.intact()) << "wrote outside of its results";
    const std::vector<double> in_a = values(a);
    const std::vector<double> in_b = values(b);
    const std::vector<double> in_bias = values(bias);
    const std::vector<double> in_other = values(other);
    const std::vector<double> results = values(d);
    const std::vector<double> sums = values(sum);
    for (std::int64_t i = 0; i < c.batch * c.m * c.n; ++i) {
      const std::int64_t column = i % c.n;
      const std::int64_t row = i / c.n % c.m;
      const std::int64_t batch = i / c.n / c.m;
      double expected = c.bias ? in_bias[column] : 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        const std::int64_t of_a = c.a_transposed ? k * c.m + row : row * c.k + k;
        const std::int64_t of_b = c.b_transposed ? column * c.k + k : k * c.n + column;
        expected += in_a[batch * c.m * c.k + of_a] * in_b[batch * c.k * c.n + of_b];
      }
      if (c.sum) {
        ASSERT_NEAR(sums[i], expected, tolerance(dtype, c.k, expected)) << "sum at " << i;
      }
      expected = combined(activated(expected, c.activation), c.combine, in_other[i]);
      ASSERT_NEAR(results[i], expected,
                  tolerance(dtype, c.k, expected) * std::max(1.0, std::abs(in_other[i])))
          << "at " << i;
    }
  }

  std::mt19937 random_{7};
};

/// A product on the device; the test takes it in each dtype and layout of an engine.
class GemmOnCudaOfCase : public GemmOnCuda, public ::testing::WithParamInterface<Case> {};

using GemmOnCudaOfFewRows = GemmOnCudaOfCase;

TEST_P(GemmOnCudaOfFewRows, MatchesFloat64) {
  if (!gpu::takes_few_rows({DType::float32, 1, 1, 2, 4, nullptr, nullptr, nullptr, false, true},
                           0)) {
    GTEST_SKIP() << "needs CUDA: compute capability 9.0";
  }
  for (const DType dtype : dtypes) {
    if (dtype == DType::float32 && GetParam().m > 64) continue;
    expect_right(dtype, GetParam(), gpu::takes_few_rows, gpu::few_rows_gemm);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , GemmOnCudaOfFewRows,
    ::testing::Values(
        Case{.m = 1, .n = 2, .k = 8}, Case{.m = 5, .n = 34, .k = 40},
        Case{.m = 16, .n = 130, .k = 776},
        Case{.m = 32, .n = 3072, .k = 64, .activation = Activation::gelu_erf},
        Case{.m = 9, .n = 5002, .k = 72},
        // More slices than multiprocessors, whose parts reuse the slot: of 24 columns, and of 32
        Case{.m = 5, .n = 4610, .k = 2056},
        Case{.m = 18, .n = 5002, .k = 1032, .activation = Activation::silu},
        Case{.m = 5, .n = 8202, .k = 2056, .bias = false}, Case{.m = 9, .n = 8202, .k = 2056},
        Case{.m = 40, .n = 8202, .k = 1032, .activation = Activation::relu},
        Case{.m = 40, .n = 9000, .k = 72}, Case{.m = 100, .n = 3000, .k = 1032},
        Case{.m = 20, .n = 2500, .k = 1608},  // unequal slices, whose parts reuse the slots
        Case{.m = 30, .n = 1000, .k = 1608, .activation = Activation::relu},  // narrow slices
        Case{.m = 33, .n = 98, .k = 1032, .activation = Activation::relu},
        Case{.m = 64, .n = 770, .k = 136, .sum = false, .activation = Activation::gelu_tanh},
        Case{.m = 17, .n = 258, .k = 520, .activation = Activation::silu},
        Case{.m = 7, .n = 24, .k = 4096, .bias = false},
        // Clusters of 2 to 8 blocks that divide k, of which the last may finish fewer results:
        Case{.m = 3, .n = 34, .k = 2056, .activation = Activation::relu},
        Case{.m = 8, .n = 130, .k = 3080, .offset = 8}, Case{.m = 9, .n = 1000, .k = 3080},
        Case{.m = 12, .n = 40, .k = 8200}, Case{.m = 16, .n = 98, .k = 1544},
        Case{.m = 20, .n = 258, .k = 8200, .activation = Activation::silu},
        Case{.m = 32, .n = 98, .k = 2696}, Case{.m = 33, .n = 98, .k = 4104},
        Case{.m = 64, .n = 98, .k = 1800}, Case{.m = 64, .n = 770, .k = 2056, .sum = false},
        Case{.m = 64, .n = 2050, .k = 4096, .bias = false},
        Case{.m = 32, .n = 258, .k = 768, .offset = 8},
        // Tiles of rows, in slices and in clusters:
        Case{.m = 65, .n = 2050, .k = 136, .activation = Activation::gelu_erf},
        Case{.m = 130, .n = 5002, .k = 72, .sum = false}, Case{.m = 511, .n = 34, .k = 264},
        Case{.m = 129, .n = 258, .k = 3080, .activation = Activation::relu},
        Case{.m = 200, .n = 98, .k = 2056, .bias = false, .offset = 8},
        // The last tile has fewer rows, and the last block of its clusters none:
        Case{.m = 65, .n = 98, .k = 2056}, Case{.m = 131, .n = 258, .k = 3080}),
    ::testing::PrintToStringParamName());

/// Products from `narrow` to `wide` columns and back.
struct Chain {
  DType dtype;
  std::int64_t m, narrow, wide;
};

void PrintTo(const Chain& chain, std::ostream* out) {
  *out << name_of(chain.dtype) << "_m" << chain.m << '_' << chain.narrow << "_to_" << chain.wide;
}

class GemmOnCudaOfChain : public GemmOnCuda, public ::testing::WithParamInterface<Chain> {};

/// The kernel lets the next one start early. A chain of products must give the same results as the
/// products one at a time.
TEST_P(GemmOnCudaOfChain, FewRowsWaitsForThePreviousProduct) {
  const auto& [dtype, m, narrow, wide] = GetParam();
  GuardedTensor widen = random_tensor(dtype, {wide, narrow}, 0, 1 / std::sqrt(narrow));
  GuardedTensor back = random_tensor(dtype, {narrow, wide}, 0, 1 / std::sqrt(wide));
  GuardedTensor first = random_tensor(dtype, {m, narrow}, 0, 1);
  GuardedTensor second(dtype, {m, wide}, 0);
  DeviceTensor device_widen(widen);
  DeviceTensor device_back(back);
  DeviceTensor device_first(first);
  DeviceTensor device_second(second);
  CudaExecution execution;
  const Call call{"relu", {}, {}, {}, execution};
  std::vector<double> results[2];
  for (const bool one_at_a_time : {true, false}) {
    device_first.upload();
    for (int i = 0; i < 21; ++i) {
      void* const small = device_first.view().data;
      void* const large = device_second.view().data;
      Gemm gemm = i % 2 == 0
                      ? Gemm{dtype, 1, m, wide, narrow, small, device_widen.view().data, large}
                      : Gemm{dtype, 1, m, narrow, wide, large, device_back.view().data, small};
      gemm.b_transposed = true;
      if (!gpu::takes_few_rows(gemm, 0)) GTEST_SKIP() << "needs CUDA: compute capability 9.0";
      ASSERT_TRUE(gpu::few_rows_gemm(call, gemm).ok());
      if (one_at_a_time) check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
    }
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
    device_second.download();
    results[one_at_a_time ? 0 : 1] = values(second);
  }
  EXPECT_EQ(results[0], results[1]);
}

// Blocks of two products that widen fit on a multiprocessor; two blocks of one product; clusters
// that divide k; tiles, which float32 has none of.
INSTANTIATE_TEST_SUITE_P(
    , GemmOnCudaOfChain,
    ::testing::Values(Chain{DType::float32, 32, 384, 3072}, Chain{DType::bfloat16, 32, 384, 3072},
                      Chain{DType::float32, 16, 1536, 8192}, Chain{DType::bfloat16, 16, 1536, 8192},
                      Chain{DType::float32, 64, 1536, 1536}, Chain{DType::bfloat16, 64, 1536, 1536},
                      Chain{DType::bfloat16, 130, 384, 768}),
    ::testing::PrintToStringParamName());

TEST_F(GemmOnCuda, FewRowsRejectsUnsupportedProducts) {
  const auto address = [](std::uintptr_t at) { return reinterpret_cast<void*>(at); };
  const Gemm taken{DType::bfloat16, 1,     8,   16, 16, address(256), address(256),
                   address(256),    false, true};
  if (!gpu::takes_few_rows(taken, 0)) GTEST_SKIP() << "needs CUDA: compute capability 9.0";
  const auto refused = [&](const auto& change) {
    Gemm gemm = taken;
    change(gemm);
    return !gpu::takes_few_rows(gemm, 0);
  };
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.m = 64 * 65535 + 1; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) {
    gemm.m = 65;
    gemm.dtype = DType::float32;
  }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.n = 15; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.k = 12; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.batch = 2; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.dtype = DType::float64; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.a_transposed = true; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.b_transposed = false; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.a = address(258); }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.b = address(264); }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.d = address(258); }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.bias = address(258); }));
}

TEST_F(GemmOnCuda, Float32RejectsUnsupportedProducts) {
  constexpr std::int64_t much = std::int64_t{1} << 31;
  const auto takes = [](DType dtype, std::int64_t batch, std::int64_t m, std::int64_t n,
                        std::int64_t k) {
    return gpu::takes_simt({dtype, batch, m, n, k, nullptr, nullptr, nullptr}, 0);
  };
  EXPECT_TRUE(takes(DType::float32, 3, 100, 100, 100));
  EXPECT_FALSE(takes(DType::float64, 3, 100, 100, 100));
  EXPECT_FALSE(takes(DType::float32, much, 1, 1, 1));
  EXPECT_FALSE(takes(DType::float32, 1, much, 1, 1));
  EXPECT_FALSE(takes(DType::float32, 1, 1, 1, 1 << 23));
}

using GemmOnCudaOfFloat32 = GemmOnCudaOfCase;

TEST_P(GemmOnCudaOfFloat32, MatchesFloat64) {
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      Case c = GetParam();
      c.a_transposed = a_transposed;
      c.b_transposed = b_transposed;
      expect_right(DType::float32, c, gpu::takes_simt, gpu::simt_gemm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , GemmOnCudaOfFloat32,
    ::testing::Values(
        Case{.m = 128, .n = 256, .k = 64}, Case{.m = 3, .n = 5, .k = 7, .batch = 2},
        Case{.m = 1, .n = 1, .k = 1}, Case{.m = 130, .n = 68, .k = 260, .batch = 3},
        Case{.m = 257, .n = 133, .k = 33, .activation = Activation::gelu_erf},
        Case{.m = 64, .n = 64, .k = 4096, .activation = Activation::relu},  // parts of k
        Case{.m = 36, .n = 20, .k = 8191, .batch = 2, .activation = Activation::gelu_tanh},
        Case{.m = 100, .n = 68, .k = 1023, .activation = Activation::silu},  // in a cluster
        Case{.m = 33, .n = 35, .k = 600, .batch = 2, .activation = Activation::gelu_erf},
        Case{.m = 65, .n = 132, .k = 130, .offset = 1},
        // The same for blocks of 64 by 64:
        Case{.m = 130, .n = 68, .k = 1030, .batch = 3},
        Case{.m = 257, .n = 133, .k = 1033, .activation = Activation::gelu_erf},
        Case{.m = 132, .n = 260, .k = 1052, .sum = false, .offset = 1},
        Case{.m = 132, .n = 260, .k = 52, .sum = false, .offset = 1},
        Case{.m = 20, .n = 12, .k = 0, .activation = Activation::relu},
        Case{.m = 1000, .n = 1100, .k = 24, .bias = false}),
    ::testing::PrintToStringParamName());

constexpr std::array mma_layouts{std::pair{false, true}, std::pair{false, false},
                                 std::pair{true, false}};

using GemmOnCudaWithMma = GemmOnCudaOfCase;

/// Plain TF32 would give float32 an error of 3e-4.
TEST_P(GemmOnCudaWithMma, MatchesFloat64) {
  if (!gpu::takes_sm80({DType::float32, 1, 1, 1, 1, nullptr, nullptr, nullptr}, 0)) {
    GTEST_SKIP() << "needs CUDA: compute capability 8.0";
  }
  for (const DType dtype : dtypes) {
    for (const auto& [a_transposed, b_transposed] : mma_layouts) {
      Case c = GetParam();
      c.a_transposed = a_transposed;
      c.b_transposed = b_transposed;
      expect_right(dtype, c, gpu::takes_sm80, gpu::sm80_gemm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , GemmOnCudaWithMma,
    ::testing::Values(
        Case{.m = 128, .n = 256, .k = 64}, Case{.m = 3, .n = 5, .k = 7, .batch = 2},
        Case{.m = 1, .n = 1, .k = 1}, Case{.m = 136, .n = 72, .k = 264, .batch = 3},
        Case{.m = 257, .n = 133, .k = 33, .activation = Activation::gelu_erf},
        Case{.m = 64, .n = 64, .k = 4096, .activation = Activation::relu},
        Case{.m = 132, .n = 260, .k = 52, .sum = false, .offset = 1},
        Case{.m = 132, .n = 264, .k = 56, .activation = Activation::gelu_tanh, .offset = 8},
        Case{.m = 100, .n = 72, .k = 1023, .activation = Activation::silu},
        Case{.m = 20, .n = 12, .k = 0, .activation = Activation::relu},
        Case{.m = 2000, .n = 1100, .k = 24, .bias = false}),
    ::testing::PrintToStringParamName());

using GemmOnCudaWithAnotherMatrix = GemmOnCudaOfCase;

TEST_P(GemmOnCudaWithAnotherMatrix, MatchesFloat64) {
  const Case& c = GetParam();
  for (const DType dtype : dtypes) {
    const Gemm like{dtype, c.batch, c.m, c.n, c.k, nullptr, nullptr, nullptr, false, true};
    if (dtype == DType::float32) {
      expect_right(dtype, c, gpu::takes_simt, gpu::simt_gemm);
    }
    if (gpu::takes_sm80(like, 0)) expect_right(dtype, c, gpu::takes_sm80, gpu::sm80_gemm);
    if (c.offset == 0 && gpu::takes_few_rows(like, 0)) {
      expect_right(dtype, c, gpu::takes_few_rows, gpu::few_rows_gemm);
    }
  }
}

/// Vectors and single elements, parts of k in memory and in a cluster, batches.
std::vector<Case> combined_cases() {
  std::vector<Case> result;
  for (const Combine combine : {Combine::add, Combine::multiply}) {
    for (Case c : {Case{.m = 36, .n = 20, .k = 8192, .activation = Activation::silu},
                   Case{.m = 33, .n = 36, .k = 600, .batch = 2}, Case{.m = 7, .n = 5, .k = 3},
                   Case{.m = 130, .n = 68, .k = 1032, .sum = false, .offset = 1},
                   Case{.m = 64, .n = 770, .k = 136, .activation = Activation::relu},
                   Case{.m = 40, .n = 98, .k = 4096, .activation = Activation::relu},
                   Case{.m = 150, .n = 98, .k = 2048}}) {
      c.combine = combine;
      result.push_back(c);
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(, GemmOnCudaWithAnotherMatrix, ::testing::ValuesIn(combined_cases()),
                         ::testing::PrintToStringParamName());

TEST_F(GemmOnCuda, MmaRejectsUnsupportedProducts) {
  constexpr std::int64_t much = std::int64_t{1} << 31;
  const Gemm taken{DType::bfloat16, 3, 100, 100, 100, nullptr, nullptr, nullptr, false, true};
  if (!gpu::takes_sm80(taken, 0)) GTEST_SKIP() << "needs CUDA: compute capability 8.0";
  const auto refused = [&](const auto& change) {
    Gemm gemm = taken;
    change(gemm);
    return !gpu::takes_sm80(gemm, 0);
  };
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.dtype = DType::float64; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.a_transposed = true; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.m = much; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.k = much; }));
  EXPECT_TRUE(refused([&](Gemm& gemm) { gemm.batch = much; }));
}

}  // namespace
}  // namespace cudarelu::testing

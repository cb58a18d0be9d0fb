// Tests of the cuBLASLt engine: compared with products in float64, and without the library.
#include "cuda/gemm/cublaslt.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "activated.h"
#include "cuda/gemm/cublaslt_library.h"
#include "cuda/gemm/cublaslt_plan.h"
#include "cuda/gemm/tuning.h"
#include "cuda_device.h"

namespace cudarelu::testing {
namespace {

TEST(CublasLtLibrary, MissingLibraryIsReportedWithASolution) {
  const std::array<std::string, 2> names{"libno_such_a.so.1", "libno_such_b.so.1"};
  const gpu::CublasLt library = gpu::open_cublaslt(names);
  EXPECT_EQ(library.multiply, nullptr);
  EXPECT_EQ(library.problem,
            "cannot open cuBLASLt: libno_such_b.so.1: cannot open shared object file: No such file "
            "or directory; put the folder that has it on LD_LIBRARY_PATH: that of a CUDA "
            "toolkit's libraries, or of the package nvidia-cublas==" +
                std::to_string(CUBLAS_VER_MAJOR) + ".*");
}

TEST(CublasLtLibrary, LibraryWithoutTheFunctionsIsRejected) {
  const std::array<std::string, 1> names{"libm.so.6"};
  EXPECT_EQ(gpu::open_cublaslt(names).problem.find("cannot use cuBLASLt: "), 0);
}

TEST(CublasLtLibrary, OtherMajorVersionIsRejected) {
  const std::array<std::string, 1> names{CUDARELU_OTHER_CUBLASLT};
  EXPECT_EQ(gpu::open_cublaslt(names).problem, "cannot use cuBLASLt 11: this build is for " +
                                                   std::to_string(CUBLAS_VER_MAJOR) +
                                                   "; build it with that CUDA toolkit");
}

TEST(CublasLt, RejectsUnsupportedProducts) {
  Gemm gemm{};
  gemm.batch = gemm.m = gemm.n = gemm.k = 4;
  for (const auto size : {&Gemm::batch, &Gemm::m, &Gemm::n, &Gemm::k}) {
    for (const std::int64_t value : {std::int64_t{0}, std::int64_t{1} << 31}) {
      Gemm other = gemm;
      other.*size = value;
      EXPECT_FALSE(gpu::takes_cublaslt(other, 0));
    }
  }
  Gemm integers = gemm;
  integers.dtype = DType::int32;
  EXPECT_FALSE(gpu::takes_cublaslt(integers, 0));
}

TEST(Tuning, FileIsSharedWithOtherProcesses) {
  const auto file =
      std::filesystem::path(::testing::TempDir()) / (std::to_string(getpid()) + "-tuning.txt");
  EXPECT_TRUE(gpu::read_tuning(file).empty());
  ASSERT_TRUE(gpu::write_tuning(file, "a 1x2", "1 2").ok());
  std::ofstream(file, std::ios::app) << "of another process = 3\nno record\n";
  ASSERT_TRUE(gpu::write_tuning(file, "a 1x2", "4").ok());
  const gpu::TuningRecords expected{{"a 1x2", "4"}, {"of another process", "3"}};
  EXPECT_EQ(gpu::read_tuning(file), expected);
  std::filesystem::remove(file);
}

TEST(Tuning, FileThatCannotBeWrittenIsAnError) {
  const Status status = gpu::write_tuning("/dev/null/tuning.txt", "a", "1");
  EXPECT_EQ(status.code(), Status::Code::invalid_argument);
  EXPECT_EQ(status.message(),
            "cannot write /dev/null/tuning.txt; CUDARELU_TUNING_DIR must name a folder that can be "
            "written, or be unset");
}

struct Case {
  DType dtype;
  std::int64_t batch;
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  bool a_transposed = false;
  bool b_transposed = false;
  bool bias = false;
  Activation activation = Activation::none;
  bool sum = false;
  std::size_t offset = 0;  // of all pointers from a 64-byte boundary, in elements
  std::optional<Combine> combine = std::nullopt;
};

std::string describe(const Case& c) {
  return std::string(name_of(c.dtype)) + " " + std::to_string(c.batch) + " x " +
         std::to_string(c.m) + " x " + std::to_string(c.n) + " x " + std::to_string(c.k) +
         (c.a_transposed ? " a^T" : "") + (c.b_transposed ? " b^T" : "") + (c.bias ? " bias" : "") +
         " activation " + std::to_string(static_cast<int>(c.activation)) + (c.sum ? " sum" : "") +
         " offset " + std::to_string(c.offset) +
         (c.combine ? " combine " + std::to_string(static_cast<int>(*c.combine)) : "");
}

GuardedTensor random_tensor(DType dtype, std::int64_t size, std::size_t offset,
                            std::mt19937& random) {
  GuardedTensor tensor(dtype, {size}, offset);
  std::normal_distribution<double> normal;
  (void)visit_dtype<floating_types>(dtype, [&]<class T>(TypeTag<T>) {
    auto* items = reinterpret_cast<T*>(tensor.data().data());
    for (std::int64_t i = 0; i < size; ++i) {
      items[i] = store<T>(static_cast<Compute<T>>(normal(random)));
    }
    return Status();
  });
  return tensor;
}

double item(GuardedTensor& tensor, std::int64_t i) {
  double value = 0;
  (void)visit_dtype<floating_types>(tensor.view().dtype, [&]<class T>(TypeTag<T>) {
    value = static_cast<double>(load(reinterpret_cast<const T*>(tensor.data().data())[i]));
    return Status();
  });
  return value;
}

void set_item(GuardedTensor& tensor, std::int64_t i, double value) {
  (void)visit_dtype<floating_types>(tensor.view().dtype, [&]<class T>(TypeTag<T>) {
    reinterpret_cast<T*>(tensor.data().data())[i] = store<T>(static_cast<Compute<T>>(value));
    return Status();
  });
}

/// The largest relative error of rounding to the dtype, or to the dtype of its sums.
double rounding(DType dtype, bool of_sums) {
  switch (dtype) {
    case DType::float64:
      return 0x1p-53;
    case DType::bfloat16:
      return of_sums ? 0x1p-24 : 0x1p-8;
    case DType::float16:
      return of_sums ? 0x1p-24 : 0x1p-11;
    default:
      return 0x1p-24;
  }
}

/// The operands of a case on the host and on the device.
struct Operands {
  Operands(const Case& c, std::mt19937& random)
      : a(random_tensor(c.dtype, c.batch * c.m * c.k, c.offset, random)),
        b(random_tensor(c.dtype, c.batch * c.k * c.n, c.offset, random)),
        bias(random_tensor(c.dtype, c.n, c.offset, random)),
        other(random_tensor(c.dtype, c.batch * c.m * c.n, c.offset, random)),
        sum(c.dtype, {c.batch * c.m * c.n}, c.offset),
        d(c.dtype, {c.batch * c.m * c.n}, c.offset) {}

  GuardedTensor a, b, bias, other, sum, d;
  DeviceTensor device_a{a}, device_b{b}, device_bias{bias}, device_other{other}, device_sum{sum},
      device_d{d};

  Gemm gemm(const Case& c) {
    return {.dtype = c.dtype,
            .batch = c.batch,
            .m = c.m,
            .n = c.n,
            .k = c.k,
            .a = device_a.view().data,
            .b = device_b.view().data,
            .d = device_d.view().data,
            .a_transposed = c.a_transposed,
            .b_transposed = c.b_transposed,
            .bias = c.bias ? device_bias.view().data : nullptr,
            .activation = c.activation,
            .sum = c.sum ? device_sum.view().data : nullptr,
            .other = c.combine ? device_other.view().data : nullptr,
            .combine = c.combine.value_or(Combine::add)};
  }
};

Status multiply(const Gemm& gemm, Execution& execution) {
  return gpu::cublaslt_gemm({"product", {}, {}, {}, execution}, gemm);
}

void expect_product(const Case& c, Operands& operands, double input_rounding = 0) {
  operands.device_sum.download();
  operands.device_d.download();
  EXPECT_TRUE(operands.sum.intact());
  EXPECT_TRUE(operands.d.intact());
  const double rounds = rounding(c.dtype, false);
  const double in_product =
      static_cast<double>(c.k + 1) * rounding(c.dtype, true) + 2 * input_rounding;
  const double in_activation = c.dtype == DType::float64   ? 1e-15
                               : c.dtype == DType::float32 ? 1e-6
                                                           : 1e-5;
  const double smallest =
      c.dtype == DType::float16 ? 0x1p-25 : 0;  // error of rounding to a float16
  for (std::int64_t i = 0; i < c.batch; ++i) {
    for (std::int64_t row = 0; row < c.m; ++row) {
      for (std::int64_t column = 0; column < c.n; ++column) {
        double sum = c.bias ? item(operands.bias, column) : 0;
        double size = std::abs(sum);
        for (std::int64_t j = 0; j < c.k; ++j) {
          const std::int64_t in_a = c.a_transposed ? j * c.m + row : row * c.k + j;
          const std::int64_t in_b = c.b_transposed ? column * c.k + j : j * c.n + column;
          const double product =
              item(operands.a, i * c.m * c.k + in_a) * item(operands.b, i * c.k * c.n + in_b);
          sum += product;
          size += std::abs(product);
        }
        const std::int64_t at = (i * c.m + row) * c.n + column;
        const double of_sum = in_product * size + rounds * std::abs(sum) + smallest;
        if (c.sum) {
          ASSERT_NEAR(item(operands.sum, at), sum, of_sum)
              << "sum, row " << row << ", column " << column << " of " << i;
        }
        const double result = activated(sum, c.activation);
        const double other = item(operands.other, at);
        const double expected = combined(result, c.combine, other);
        const bool smooth = c.activation >= Activation::gelu_erf;
        const double steepness = smooth ? 1.13 : 1;  // at limit
        double error = steepness * of_sum + rounds * std::abs(result) + smallest +
                       (smooth ? in_activation : 0);
        if (c.combine) {
          // Of operands that are not aligned, the product is rounded before what is added.
          const double bias = c.bias ? item(operands.bias, column) : 0;
          if (c.offset != 0) error += rounds * (std::abs(sum - bias) + std::abs(other));
          error = error * std::max(1.0, std::abs(other)) + rounds * std::abs(expected) + smallest;
        }
        ASSERT_NEAR(item(operands.d, at), expected, error)
            << "row " << row << ", column " << column << " of " << i;
      }
    }
  }
}

void expect_product(const Case& c, CudaExecution& execution, std::mt19937& random) {
  SCOPED_TRACE(describe(c));
  Operands operands(c, random);
  const Gemm gemm = operands.gemm(c);
  if (!gpu::takes_cublaslt(gemm, 0)) {
    EXPECT_NE(c.offset * size_of(c.dtype) % 16, 0) << "cuBLASLt rejects aligned operands";
    return;
  }
  const Status status = multiply(gemm, execution);
  ASSERT_TRUE(status.ok()) << status.message();
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
  expect_product(c, operands);
}

class CublasLtOnCuda : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "needs CUDA: no device on this machine";
    ASSERT_EQ(gpu::cublaslt_problem(), "");
  }
};

TEST_P(CublasLtOnCuda, MultipliesAnyShape) {
  CudaExecution execution;
  std::mt19937 random(1);
  constexpr std::array<std::array<std::int64_t, 4>, 12> shapes{{{1, 1, 1, 1},
                                                                {1, 3, 5, 7},
                                                                {1, 17, 1, 33},
                                                                {1, 1, 64, 128},
                                                                {1, 64, 1, 128},
                                                                {1, 64, 128, 1},
                                                                {1, 128, 128, 128},
                                                                {1, 129, 136, 65},
                                                                {1, 32, 192, 1024},
                                                                {5, 64, 64, 64},
                                                                {4, 5, 7, 3},
                                                                {33, 8, 16, 24}}};
  for (const auto& [batch, m, n, k] : shapes) {
    for (const std::size_t offset : {0, 1, 4}) {
      for (const int transposed : {0, 1, 2, 3}) {
        expect_product({GetParam(), batch, m, n, k, (transposed & 1) != 0, (transposed & 2) != 0,
                        false, Activation::none, false, offset},
                       execution, random);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(CublasLtOnCuda, ComputesEveryEpilogue) {
  CudaExecution execution;
  std::mt19937 random(2);
  // In the last shapes, algorithms may split the long k.
  constexpr std::array<std::array<std::int64_t, 4>, 6> shapes{{{1, 33, 64, 48},
                                                               {1, 7, 9, 5},
                                                               {3, 16, 24, 40},
                                                               {2, 1, 1, 1},
                                                               {1, 8, 64, 4096},
                                                               {1, 7, 9, 999}}};
  for (const auto& [batch, m, n, k] : shapes) {
    for (const std::size_t offset : {0, 1}) {
      for (const bool bias : {false, true}) {
        for (const bool sum : {false, true}) {
          for (const Activation activation : activations) {
            for (const auto& combine : combinations) {
              expect_product(
                  {GetParam(), batch, m, n, k, false, true, bias, activation, sum, offset, combine},
                  execution, random);
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

/// Returns the first row of the product. The bias becomes its negative in odd columns, the other
/// matrix in even ones, and 0 elsewhere.
std::vector<double> cancel_first_row(const Case& c, Operands& operands) {
  std::vector<double> products(static_cast<std::size_t>(c.n));
  for (std::int64_t column = 0; column < c.n; ++column) {
    double& sum = products[static_cast<std::size_t>(column)];
    for (std::int64_t i = 0; i < c.k; ++i) {
      sum += item(operands.a, i) *
             item(operands.b, c.b_transposed ? column * c.k + i : i * c.n + column);
    }
    set_item(operands.bias, column, column % 2 == 0 ? 0 : -sum);
    set_item(operands.other, column, column % 2 == 0 ? -sum : 0);
  }
  operands.device_bias.upload();
  operands.device_other.upload();
  return products;
}

/// Computes a product by each algorithm of the heuristics for an epilogue, and calls
/// visit(algorithm) with the result in operands.d.
template <class Visit>
void for_each_algorithm(Operands& operands, const Gemm& gemm, cublasLtEpilogue_t epilogue,
                        std::uint8_t alignment, const Visit& visit) {
  SCOPED_TRACE("epilogue " + std::to_string(epilogue) + " alignment " + std::to_string(alignment) +
               (gemm.other == nullptr ? "" : " adds other"));
  const gpu::lt::ProblemKey key{.m = static_cast<std::int32_t>(gemm.m),
                                .n = static_cast<std::int32_t>(gemm.n),
                                .k = static_cast<std::int32_t>(gemm.k),
                                .batch = 1,
                                .device = 0,
                                .epilogue = epilogue,
                                .dtype = gemm.dtype,
                                .a_transposed = false,
                                .b_transposed = gemm.b_transposed,
                                .tf32 = false,
                                .workspace = true,
                                .a_alignment = alignment,
                                .b_alignment = alignment,
                                .rest_alignment = alignment};
  CudaExecution execution;
  void* const workspace = execution.allocate(32 << 20);  // the limit that the heuristics may choose
  ASSERT_NE(workspace, nullptr);
  cublasLtHandle_t handle = nullptr;
  ASSERT_EQ(gpu::lt::handle_of(0, handle), CUBLAS_STATUS_SUCCESS);
  gpu::lt::MatmulPlan& plan = gpu::lt::plan_for(key, gemm);
  ASSERT_TRUE(gpu::lt::set_pointers(plan, key, gemm));
  const bool adds_other = gemm.other != nullptr;
  const struct {
    float in_float;
    double in_double;
  } one{1, 1}, zero{0, 0};
  const auto scalar = [&](const auto& number) -> const void* {
    if (gemm.dtype == DType::float64) return &number.in_double;
    return &number.in_float;
  };
  auto* const stream = static_cast<cudaStream_t>(execution.stream);
  const auto algorithms = gpu::lt::ask_heuristics(plan, key, 32);
  ASSERT_FALSE(algorithms.empty());
  for (const gpu::lt::Algorithm& algorithm : algorithms) {
    std::ranges::fill(operands.d.data(), std::uint8_t{0x7b});  // a large number
    operands.device_d.upload();
    ASSERT_EQ(gpu::cublaslt().multiply(handle, &plan.product, scalar(one), gemm.b, &plan.b, gemm.a,
                                       &plan.a, scalar(adds_other ? one : zero),
                                       adds_other ? gemm.other : gemm.d, &plan.d, gemm.d, &plan.d,
                                       &algorithm.algo, workspace, algorithm.workspace, stream),
              CUBLAS_STATUS_SUCCESS);
    check(cudaStreamSynchronize(stream));
    operands.device_d.download();
    visit(algorithm);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

using CublasLtHalvesOnCuda = CublasLtOnCuda;

/// Each algorithm, which may split k, adds the bias and the other matrix and applies the activation
/// to the sum before it rounds.
TEST_P(CublasLtHalvesOnCuda, RoundsOnce) {
  struct Strategy {
    cublasLtEpilogue_t epilogue;
    bool adds_other;
    Activation activation;
    std::uint8_t alignment;
  };
  constexpr std::array ways{
      Strategy{CUBLASLT_EPILOGUE_BIAS, false, Activation::none, 2},
      Strategy{CUBLASLT_EPILOGUE_DEFAULT, true, Activation::none, 128},
      Strategy{CUBLASLT_EPILOGUE_BIAS, true, Activation::none, 128},
      Strategy{CUBLASLT_EPILOGUE_BIAS, false, Activation::none, 16},
      Strategy{CUBLASLT_EPILOGUE_RELU_BIAS, false, Activation::relu, 16},
      Strategy{CUBLASLT_EPILOGUE_GELU_BIAS, false, Activation::gelu_tanh, 16},
      Strategy{CUBLASLT_EPILOGUE_GELU_AUX_BIAS, false, Activation::gelu_tanh, 16}};
  constexpr std::array<std::array<std::int64_t, 3>, 5> shapes{
      {{65, 768, 3072}, {128, 64, 11008}, {8, 8, 4096}, {200, 384, 1536}, {300, 264, 2056}}};
  std::mt19937 random(8);
  int splits = 0;  // of algorithms with an activation
  for (const auto& [m, n, k] : shapes) {
    for (const bool b_transposed : {false, true}) {
      const Case c{.dtype = GetParam(),
                   .batch = 1,
                   .m = m,
                   .n = n,
                   .k = k,
                   .b_transposed = b_transposed,
                   .bias = true,
                   .sum = true,
                   .combine = Combine::add};
      SCOPED_TRACE(describe(c));
      Operands operands(c, random);
      const std::vector<double> products = cancel_first_row(c, operands);
      const double largest = std::abs(*std::ranges::max_element(
          products, {}, [](double product) { return std::abs(product); }));
      for (const auto& [epilogue, adds_other, activation, alignment] : ways) {
        Gemm gemm = operands.gemm(c);
        const bool bias = epilogue != CUBLASLT_EPILOGUE_DEFAULT;
        if (!bias) gemm.bias = nullptr;
        if (!adds_other) gemm.other = nullptr;
        const auto expect_rounded_once = [&](const gpu::lt::Algorithm& algorithm) {
          if (algorithm.splits_k && activation != Activation::none) ++splits;
          for (std::int64_t column = 0; column < n; ++column) {
            double sum = products[static_cast<std::size_t>(column)];
            if (bias) sum += item(operands.bias, column);
            if (adds_other) sum += item(operands.other, column);
            const double expected = activated(sum, activation);
            // To round the largest product causes up to four times the first part of this error.
            const double error = rounding(c.dtype, false) * (largest / 8 + std::abs(expected));
            ASSERT_NEAR(item(operands.d, column), expected, error) << "column " << column;
          }
        };
        for_each_algorithm(operands, gemm, epilogue, alignment, expect_rounded_once);
        if (HasFatalFailure()) return;
      }
    }
  }
  int capability = 0;
  check(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, 0));
  if (CUBLAS_VER_MAJOR >= 13 && capability == 9) {
    EXPECT_GT(splits, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(, CublasLtHalvesOnCuda, ::testing::Values(DType::float16, DType::bfloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(CublasLtOnCuda, PropagatesNaN) {
  CudaExecution execution;
  std::mt19937 random(3);
  for (const auto& [m, k] : {std::pair{8, 64}, std::pair{96, 8192}}) {  // and k that may be split
    for (const Activation activation : activations) {
      const Case c{.dtype = GetParam(),
                   .batch = 1,
                   .m = m,
                   .n = 64,
                   .k = k,
                   .b_transposed = true,
                   .bias = true,
                   .activation = activation};
      SCOPED_TRACE(describe(c));
      Operands operands(c, random);
      set_item(operands.bias, 5, std::numeric_limits<double>::quiet_NaN());
      operands.device_bias.upload();
      ASSERT_TRUE(gpu::takes_cublaslt(operands.gemm(c), 0));
      ASSERT_TRUE(multiply(operands.gemm(c), execution).ok());
      check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
      operands.device_d.download();
      for (std::int64_t i = 0; i < c.m * c.n; ++i) {
        EXPECT_EQ(std::isnan(item(operands.d, i)), i % c.n == 5) << "at " << i;
      }
    }
  }
}

/// Each algorithm, which may split k, keeps NaN in an operand, of infinities, and in the bias.
TEST_P(CublasLtOnCuda, EachAlgorithmKeepsNaN) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::mt19937 random(9);
  for (const auto& [m, n, k] : {std::array{96, 64, 8192}, std::array{65, 768, 3072}}) {
    const Case c{.dtype = GetParam(),
                 .batch = 1,
                 .m = m,
                 .n = n,
                 .k = k,
                 .b_transposed = true,
                 .bias = true,
                 .sum = true};
    SCOPED_TRACE(describe(c));
    Operands operands(c, random);
    set_item(operands.a, k + k / 2, nan);
    set_item(operands.a, 2 * k, infinity);
    set_item(operands.a, 3 * k - 1, -infinity);
    set_item(operands.bias, 5, nan);
    operands.device_a.upload();
    operands.device_bias.upload();
    std::vector<double> infinite_sums;  // of row 2
    for (std::int64_t column = 0; column < n; ++column) {
      const double first = item(operands.b, column * k);
      const double last = item(operands.b, column * k + k - 1);
      infinite_sums.push_back(infinity * first - infinity * last);
    }
    for (const cublasLtEpilogue_t epilogue :
         {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS,
          CUBLASLT_EPILOGUE_GELU_AUX_BIAS}) {
      Gemm gemm = operands.gemm(c);
      const bool bias = epilogue != CUBLASLT_EPILOGUE_RELU;
      if (!bias) gemm.bias = nullptr;
      const bool relu = !bias || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
      const Activation activation = relu ? Activation::relu : Activation::gelu_tanh;
      const auto expect_nan = [&](const gpu::lt::Algorithm& /*algorithm*/) {
        for (std::int64_t row = 0; row < m; ++row) {
          for (std::int64_t column = 0; column < n; ++column) {
            // GELU makes NaN of -infinity too.
            const double infinite =
                activated(infinite_sums[static_cast<std::size_t>(column)], activation);
            const bool expected =
                row == 1 || (bias && column == 5) || (row == 2 && std::isnan(infinite));
            ASSERT_EQ(std::isnan(item(operands.d, row * n + column)), expected)
                << "row " << row << ", column " << column;
          }
        }
      };
      for_each_algorithm(operands, gemm, epilogue, 16, expect_nan);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CublasLtOnCuda, WorksWithoutWorkspace) {
  CudaExecution execution;
  std::mt19937 random(4);
  const Case c{.dtype = GetParam(), .batch = 1, .m = 16, .n = 16, .k = 1 << 14};
  Operands operands(c, random);
  execution.refuse = true;
  ASSERT_TRUE(gpu::takes_cublaslt(operands.gemm(c), 0));
  const Status status = multiply(operands.gemm(c), execution);
  ASSERT_TRUE(status.ok()) << status.message();
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
  expect_product(c, operands);
}

TEST_P(CublasLtOnCuda, FirstCallCanBeCaptured) {
  CudaExecution execution;
  auto* stream = static_cast<cudaStream_t>(execution.stream);
  std::mt19937 random(5);
  const Case c{.dtype = GetParam(),
               .batch = 1,
               .m = 40,
               .n = 56,
               .k = 72,
               .bias = true,
               .activation = Activation::gelu_tanh,
               .sum = true};
  Operands operands(c, random);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  ASSERT_TRUE(gpu::takes_cublaslt(operands.gemm(c), 0));
  const Status status = multiply(operands.gemm(c), execution);
  check(cudaStreamEndCapture(stream, &graph));
  ASSERT_TRUE(status.ok()) << status.message();
  check(cudaGraphInstantiate(&executable, graph, 0));
  check(cudaGraphLaunch(executable, stream));
  check(cudaStreamSynchronize(stream));
  expect_product(c, operands);
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
}

TEST_P(CublasLtOnCuda, SupportsThreads) {
  const Case c{.dtype = GetParam(),
               .batch = 1,
               .m = 24,
               .n = 40,
               .k = 8,
               .bias = true,
               .activation = Activation::relu};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&c, seed] {
      CudaExecution execution;
      std::mt19937 random(seed);
      Operands operands(c, random);  // The threads share the plan of the shape, but no pointers.
      for (int i = 0; i < 50; ++i) EXPECT_TRUE(multiply(operands.gemm(c), execution).ok());
      check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
      expect_product(c, operands);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

using CublasLtTf32OnCuda = CublasLtOnCuda;

TEST_P(CublasLtTf32OnCuda, IsUsedOnlyIfAllowed) {
  CudaExecution execution;
  std::mt19937 random(6);
  const Case c{.dtype = GetParam(), .batch = 1, .m = 128, .n = 128, .k = 16};
  Operands operands(c, random);
  ASSERT_TRUE(multiply(operands.gemm(c), execution).ok());
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
  expect_product(c, operands);
  const auto bytes = operands.d.data();
  const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  Gemm rounded = operands.gemm(c);
  rounded.allow_tf32 = true;
  ASSERT_TRUE(multiply(rounded, execution).ok());
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(execution.stream)));
  expect_product(c, operands, 0x1p-10);  // TF32 truncates the mantissa to 10 bits.
  EXPECT_FALSE(std::ranges::equal(exact, operands.d.data())) << "TF32 changed nothing";
}

INSTANTIATE_TEST_SUITE_P(, CublasLtTf32OnCuda, ::testing::Values(DType::float32),
                         [](const auto& info) { return std::string(name_of(info.param)); });
INSTANTIATE_TEST_SUITE_P(, CublasLtOnCuda,
                         ::testing::Values(DType::float32, DType::float64, DType::float16,
                                           DType::bfloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace cudarelu::testing

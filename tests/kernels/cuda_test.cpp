// Tests of every op on CUDA: compared with the CPU, between canaries, at any alignment, and
// captured.
#include <cmath>

#include "cuda_device.h"

namespace cudarelu::testing {
namespace {

struct DeviceArguments {
  explicit DeviceArguments(Arguments& arguments) : attributes(arguments.attributes) {
    for (GuardedTensor& tensor : arguments.inputs) inputs.emplace_back(tensor);
    for (GuardedTensor& tensor : arguments.outputs) outputs.emplace_back(tensor);
  }
  Status run(const Op& op, Execution& execution) {
    std::vector<TensorView> in;
    std::vector<TensorView> out;
    for (DeviceTensor& tensor : inputs) in.push_back(tensor.view());
    for (DeviceTensor& tensor : outputs) out.push_back(tensor.view());
    return cudarelu::run(op, in, out, attributes, execution);
  }

  std::vector<DeviceTensor> inputs;
  std::vector<DeviceTensor> outputs;
  std::vector<Attribute> attributes;
};

/// The largest difference between two results, relative to 1 + the largest element. The rounding of
/// a sum of products of about 2^4 is a relative error of its exponential.
double tolerance(const Op& op, DType dtype) {
  const auto has = [&](std::string_view name) {
    return op.spec.definition.find(name) != std::string_view::npos;
  };
  const bool exponentiates_products = has("MatMul(") && has("Exp(");
  switch (dtype) {
    case DType::float64:
      return exponentiates_products ? 5e-14 : 1e-14;
    case DType::float32:
      return exponentiates_products ? 1e-5 : 2e-6;
    case DType::float16:
      return 1e-3;
    case DType::bfloat16:
      return 8e-3;
    default:
      return 0;
  }
}

/// The tolerance is relative to the largest element, since terms of a sum may cancel in one
/// element.
void expect_close(const Op& op, GuardedTensor& actual, GuardedTensor& expected) {
  const TensorView a = actual.view();
  const TensorView b = expected.view();
  (void)visit_dtype<real_types>(a.dtype, [&]<class T>(TypeTag<T>) {
    double largest = 0;
    for (std::int64_t i = 0; i < b.size(); ++i) {
      const auto y = static_cast<double>(load(static_cast<const T*>(b.data)[i]));
      if (std::isfinite(y)) largest = std::max(largest, std::abs(y));
    }
    for (std::int64_t i = 0; i < a.size(); ++i) {
      const auto x = static_cast<double>(load(static_cast<const T*>(a.data)[i]));
      const auto y = static_cast<double>(load(static_cast<const T*>(b.data)[i]));
      const bool same = x == y || (std::isnan(x) && std::isnan(y));
      EXPECT_TRUE(same || std::abs(x - y) <= tolerance(op, a.dtype) * (1 + largest))
          << "at " << i << ": " << x << " on CUDA, " << y << " on the CPU";
      if (::testing::Test::HasFailure()) break;
    }
    return Status();
  });
}

class EveryOpOnCuda : public ::testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "needs CUDA: no device on this machine";
  }
  const Op& op() const { return op_table()[GetParam()]; }
};

TEST_P(EveryOpOnCuda, MatchesTheCpuAtAnyAlignment) {
  CudaExecution cuda;
  std::mt19937 random(3);
  for (const DType dtype : dtypes_of(op())) {
    for (const Dimensions& dimensions : edge_dimensions(op())) {
      for (const std::size_t offset : {0, 1, 3}) {
        for (const bool outputs_apart : {false, true}) {
          SCOPED_TRACE(describe(op(), dtype, dimensions) + " offset " + std::to_string(offset) +
                       (outputs_apart ? ", outputs with another alignment" : ""));
          Arguments expected = make_arguments(op(), dtype, dimensions, offset, random);
          if (outputs_apart) {
            for (GuardedTensor& output : expected.outputs) {
              const TensorView view = output.view();
              output = GuardedTensor(view.dtype, Sizes(view.shape.begin(), view.shape.end()),
                                     offset + 1);
            }
          }
          Arguments actual = expected;
          SerialExecution cpu(0);
          ASSERT_TRUE(run_arguments(op(), expected, cpu).ok());
          DeviceArguments device(actual);
          const Status status = device.run(op(), cuda);
          ASSERT_TRUE(status.ok()) << status.message();
          check(cudaStreamSynchronize(static_cast<cudaStream_t>(cuda.stream)));
          for (std::size_t i = 0; i < actual.outputs.size(); ++i) {
            device.outputs[i].download();
            EXPECT_TRUE(actual.outputs[i].intact());
            expect_close(op(), actual.outputs[i], expected.outputs[i]);
          }
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(EveryOpOnCuda, CanBeCapturedAndReplayedOnNewInputs) {
  CudaExecution cuda;
  auto* stream = static_cast<cudaStream_t>(cuda.stream);
  std::mt19937 random(4);
  // With many dimensions, these elements take the CPU long.
  const Dimensions dimensions{{named_dimensions(op()) > 3 ? 2 : 300, 5}, 33};
  const DType dtype = dtypes_of(op()).front();
  Arguments first = make_arguments(op(), dtype, dimensions, 0, random);
  Arguments expected = make_arguments(op(), dtype, dimensions, 0, random);
  DeviceArguments device(first);
  ASSERT_TRUE(device.run(op(), cuda).ok());  // loads the kernel, which is forbidden during capture
  check(cudaStreamSynchronize(stream));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  const Status status = device.run(op(), cuda);
  check(cudaStreamEndCapture(stream, &graph));
  ASSERT_TRUE(status.ok()) << status.message();
  check(cudaGraphInstantiate(&executable, graph, 0));

  for (std::size_t i = 0; i < first.inputs.size(); ++i) {
    std::ranges::copy(expected.inputs[i].whole(), first.inputs[i].whole().begin());
    device.inputs[i].upload();
  }
  check(cudaGraphLaunch(executable, stream));
  check(cudaStreamSynchronize(stream));
  SerialExecution cpu(0);
  ASSERT_TRUE(run_arguments(op(), expected, cpu).ok());
  for (std::size_t i = 0; i < first.outputs.size(); ++i) {
    device.outputs[i].download();
    expect_close(op(), first.outputs[i], expected.outputs[i]);
  }
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
}

TEST_P(EveryOpOnCuda, MissingWorkspaceIsAnError) {
  CudaExecution cuda;
  cuda.refuse = true;
  std::mt19937 random(5);
  Arguments arguments = make_arguments(op(), dtypes_of(op()).front(), {{5000}, 5}, 0, random);
  DeviceArguments device(arguments);
  const Status status = device.run(op(), cuda);
  EXPECT_TRUE(status.ok() || status.code() == Status::Code::out_of_memory) << status.message();
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(cuda.stream)));
}

TEST(PointwiseOnCuda, SupportsMoreThan32BitSizes) {
  std::size_t free = 0;
  std::size_t total = 0;
  constexpr std::int64_t size = (std::int64_t{1} << 31) + 17;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess || free < 2 * size) {
    GTEST_SKIP() << "needs CUDA: no device with " << 2 * size << " bytes free";
  }
  void* memory = nullptr;
  check(cudaMalloc(&memory, size + 16));
  auto* const data = static_cast<std::int8_t*>(memory);
  CudaExecution cuda;
  const Op& op = *find_own("relu");
  for (const int offset : {0, 1}) {
    check(cudaMemset(data, 0xff, size + 16));  // -1 everywhere
    check(cudaDeviceSynchronize());
    const Sizes shape{size};
    // In place, so that input and output have the same alignment and vectors are used.
    const TensorView view{data + offset, DType::int8, shape};
    ASSERT_TRUE(run(op, {&view, 1}, {&view, 1}, {}, cuda).ok());
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(cuda.stream)));
    std::array<std::int8_t, 64> tail{};
    check(cudaMemcpy(tail.data(), data + offset + size - 48, 64 - 16 + 15 - offset,
                     cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < 48; ++i) EXPECT_EQ(tail[i], 0) << i;
    EXPECT_EQ(tail[48], -1);  // the first element after the tensor
  }
  check(cudaFree(memory));
}

// A launch processes at most 2^30 elements. It consists of complete rows, or of a part of one row.
TEST(PointwiseOnCuda, RepeatsTheLastDimensionInEveryPart) {
  constexpr std::int64_t part = std::int64_t{1} << 30;
  for (const auto& [rows, columns] : {std::pair{part / 3 + 7, std::int64_t{3}}, {2, part + 5}}) {
    const std::int64_t size = rows * columns;
    const std::size_t bytes = 2 * static_cast<std::size_t>(size + columns);
    std::size_t free = 0;
    std::size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess || free < bytes) {
      GTEST_SKIP() << "needs CUDA: no device with " << bytes << " bytes free";
    }
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes));
    auto* const x = static_cast<std::uint16_t*>(memory);
    std::uint16_t* const bias = x + size;
    check(cudaMemset(memory, 0, bytes));
    constexpr std::int64_t length = 40;
    const std::int64_t second_part = columns < part ? part / columns * columns : part;
    const std::int64_t last_row = columns * (rows - 1);
    const std::array<std::int64_t, 4> starts{0, std::min(second_part - length / 2, size - length),
                                             std::min(last_row - length / 2, size - length),
                                             size - length};
    const auto expected = [&](std::int64_t i) {
      return static_cast<std::uint16_t>(0x3c00 + i % columns % 256);  // float16, from 1.0 on
    };
    for (const std::int64_t start : starts) {
      for (std::int64_t i = start; i < start + length; ++i) {
        const std::uint16_t value = expected(i);
        check(cudaMemcpy(bias + i % columns, &value, sizeof(value), cudaMemcpyHostToDevice));
      }
    }
    check(cudaDeviceSynchronize());
    CudaExecution cuda;
    const Sizes shape{rows, columns};
    const Sizes row{columns};
    const std::array inputs{TensorView{x, DType::float16, shape},
                            TensorView{bias, DType::float16, row}};
    const TensorView output{x, DType::float16, shape};
    const std::array<Attribute, 1> scale{1.0};
    ASSERT_TRUE(run(*find_own("bias_relu"), inputs, {&output, 1}, scale, cuda).ok());
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(cuda.stream)));
    for (const std::int64_t start : starts) {
      std::array<std::uint16_t, length> values{};
      check(cudaMemcpy(values.data(), x + start, sizeof(values), cudaMemcpyDeviceToHost));
      for (std::int64_t i = 0; i < length; ++i) {
        EXPECT_EQ(values[static_cast<std::size_t>(i)], expected(start + i)) << start + i;
      }
    }
    check(cudaFree(memory));
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, EveryOpOnCuda, ::testing::Range(std::size_t{0}, op_table().size()),
                         [](const auto& info) { return std::string(op_table()[info.param].name); });

}  // namespace
}  // namespace cudarelu::testing

// Tests of run(): replacements of absent inputs, checks of values, exceptions, and allocations that
// fail.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <stdexcept>

#include "arguments.h"
#include "cudarelu/detail/define_module.h"

namespace {
/// The allocations on this thread that succeed before all others fail; negative: all succeed.
thread_local int allocations = -1;
}  // namespace

// Not inlined, since the compiler warns if it inlines only one function of a pair.
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const memory = allocations == 0 ? nullptr : std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  if (allocations > 0) --allocations;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace cudarelu::testing {
namespace {

Status run_knn(std::vector<std::int32_t> offset, std::vector<std::int32_t> new_offset) {
  const Op& op = *find_own("knn_query");
  std::vector<float> xyz(9 * 3, 0.0f);
  const Sizes points{9, 3};
  const Sizes offsets{static_cast<std::int64_t>(offset.size())};
  const Sizes result{9, 1};
  std::vector<std::int32_t> idx(9);
  std::vector<float> distance(9);
  const TensorView inputs[] = {{xyz.data(), DType::float32, points},
                               {offset.data(), DType::int32, offsets},
                               {nullptr, DType::float32, {}, false},
                               {new_offset.data(), DType::int32, offsets, !new_offset.empty()}};
  const TensorView outputs[] = {{idx.data(), DType::int32, result},
                                {distance.data(), DType::float32, result}};
  const Attribute attributes[] = {std::int64_t{1}};
  SerialExecution execution(0);
  return run(op, inputs, outputs, attributes, execution);
}

TEST(Run, AbsentInputsAreReplaced) {
  const Status status = run_knn({4, 9}, {});
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Run, OffsetsAreChecked) {
  EXPECT_EQ(run_knn({9, 4}, {}).message(), "knn_query: offset[1] is 4, less than 9 before it");
  EXPECT_EQ(run_knn({-1, 9}, {}).message(), "knn_query: offset[0] is -1, less than 0 before it");
  EXPECT_EQ(run_knn({4, 10}, {}).message(),
            "knn_query: offset[1] is 10, which exceeds dimension n, 9");
  EXPECT_EQ(run_knn({4, 9}, {9, 8}).message(),
            "knn_query: new_offset[1] is 8, less than 9 before it");
}

/// Runs an op with this signature on the CPU. Its output is one int64.
template <Kernel kernel>
Status run_signature(const char* signature, std::span<const TensorView> inputs,
                     const Strides& strides = {}) {
  static const Module module;
  Op op;
  op.module = &module;
  op.name = "f";
  op.signature = parse_signature(signature);
  op.cpu = detail::entry<kernel>;
  std::int64_t element = 0;
  const Sizes one{1};
  const TensorView output{&element, DType::int64, one};
  SerialExecution execution(0);
  return run(op, inputs, {&output, 1}, {}, execution, strides);
}

Status succeed(const Call& /*call*/) { return {}; }

TEST(Run, AbsentInputsAreNotRead) {
  std::vector<float> x(2, 1.0f);
  std::vector<std::int32_t> offset{1, 3};
  const Sizes two{2};
  const TensorView rows{x.data(), DType::float32, two};
  const TensorView ends{offset.data(), DType::int32, two};
  const TensorView absent{nullptr, DType::float32, {}, false};
  EXPECT_EQ(run_signature<succeed>("f(x: T[n], o: offsets(n)[b], w: T[n]? > 0 = 1) -> y: i64[1]",
                                   std::array{rows, ends, absent})
                .message(),
            "f: o[1] is 3, which exceeds dimension n, 2");
  EXPECT_TRUE(
      run_signature<succeed>("f(x: T[n], w: T[n]? > 0 = 1) -> y: i64[1]", std::array{rows, absent})
          .ok());
  EXPECT_EQ(run_signature<succeed>("f(x: T[n], o: offsets(n)[b], u: T[m]?, v: T[m]? = x, "
                                   "p: offsets(m)[b]? = o) -> y: i64[1]",
                                   std::array{rows, ends, absent, absent, ends})
                .message(),
            "f: o[1] is 3, which exceeds dimension n, 2");
}

TEST(Run, ElementsOfAnyTypeMustBePositive) {
  std::vector<std::int32_t> x{2, 0};
  const Sizes two{2};
  const TensorView input{x.data(), DType::int32, two};
  EXPECT_EQ(run_signature<succeed>("f(x: i32[n] > 0) -> y: i64[1]", std::array{input}).message(),
            "f: x[1] is 0, but must be greater than 0");
}

/// The status is the strides of the inputs, and of the output.
Status tell_strides(const Call& call) {
  std::string text;
  const auto tell = [&](std::size_t count, const std::int64_t* const* strides) {
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_dense = strides == nullptr || strides[i] == nullptr;
      text += is_dense ? " dense" : " " + std::to_string(*strides[i]);
    }
  };
  tell(call.inputs.size(), call.strides.inputs);
  tell(call.outputs.size(), call.strides.outputs);
  return {Status::Code::internal, text};
}

TEST(Run, KernelsGetStrides) {
  std::vector<float> x(4, 1.0f);
  const Sizes two{2};
  const TensorView given{x.data(), DType::float32, two};
  const TensorView absent{nullptr, DType::float32, {}, false};
  const char* const signature = "f(x: T[n], y: T[n], z: T[n]? = x) -> r: i64[1]";
  const std::int64_t of_x[] = {2};
  const std::int64_t of_z[] = {3};
  const std::int64_t* const inputs[] = {of_x, nullptr, of_z};
  const std::int64_t* const outputs[] = {of_z};
  const auto told = [&](const TensorView& z, const Strides& strides) {
    return run_signature<tell_strides>(signature, std::array{given, given, z}, strides).message();
  };
  EXPECT_EQ(told(given, {inputs, outputs}), " 2 dense 3 3");
  EXPECT_EQ(told(absent, {inputs, outputs}), " 2 dense 2 3");
  EXPECT_EQ(told(absent, {inputs, nullptr}), " 2 dense 2 dense");
  EXPECT_EQ(told(absent, {}), " dense dense dense dense");
}

TEST(Run, ReadersThatKnowNoStridesPassNone) {
  const cudarelu_services services{};
  const std::int64_t stride[] = {2};
  const std::int64_t* const strides[] = {stride};
  const TensorView x{nullptr, DType::float32, {}};
  cudarelu_call call{};
  call.size = sizeof(call);
  call.op = "f";
  call.inputs = to_c({&x, 1});
  call.input_count = 1;
  call.services = &services;
  call.input_strides = strides;
  cudarelu_error error;
  detail::entry<tell_strides>(&call, &error);
  EXPECT_STREQ(error.message, " 2");
  call.size = offsetof(cudarelu_call, input_strides);
  detail::entry<tell_strides>(&call, &error);
  EXPECT_STREQ(error.message, " dense");
}

TEST(Run, OnlyOpsThatSaySoAreStrided) {
  EXPECT_TRUE(find_own("attention")->strided);
  EXPECT_FALSE(find_own("softmax")->strided);
  EXPECT_FALSE(find_own("relu")->strided);
  EXPECT_FALSE(find_own("linear_relu")->strided);
}

/// Returns the status of run() for a kernel that throws.
template <Kernel kernel>
Status run_throwing() {
  std::vector<float> x(2);
  const Sizes two{2};
  const TensorView input{x.data(), DType::float32, two};
  Status status = run_signature<kernel>("f(x: T[n]) -> y: i64[1]", std::array{input});
  allocations = -1;
  return status;
}

const std::string long_text(100, 'x');  // too long for the internal buffer of std::string

Status throw_text(const Call& /*call*/) { throw std::runtime_error(long_text); }
Status throw_number(const Call& /*call*/) { throw 1; }
Status throw_bad_alloc(const Call& /*call*/) {
  allocations = 0;
  throw std::bad_alloc();
}
Status throw_without_memory(const Call& /*call*/) {
  const std::runtime_error error(long_text);
  allocations = 0;
  throw error;  // a copy shares the text
}

TEST(Run, ExceptionsBecomeErrors) {
  const Status status = run_throwing<throw_text>();
  EXPECT_EQ(status.code(), Status::Code::internal);
  EXPECT_EQ(status.message(), "f: " + long_text);
  EXPECT_EQ(run_throwing<throw_number>().message(), "f: an exception of an unknown type");
}

/// Lends a number of blocks of workspace, and none after these.
class ScarceExecution final : public SerialExecution {
 public:
  explicit ScarceExecution(int blocks) : SerialExecution(0), blocks_(blocks) {}
  void* allocate(std::size_t bytes) override {
    if (blocks_ == 0) return nullptr;
    --blocks_;
    return SerialExecution::allocate(bytes);
  }
  bool has_rest() const { return blocks_ > 0; }

 private:
  int blocks_;
};

std::vector<std::vector<std::uint8_t>> outputs_of(Arguments& arguments) {
  std::vector<std::vector<std::uint8_t>> all;
  for (GuardedTensor& each : arguments.outputs) {
    all.emplace_back(each.data().begin(), each.data().end());
  }
  return all;
}

/// Every block of workspace, or every allocation of memory, of a call fails in turn.
void expect_errors(const Op& op, DType dtype, bool of_workspace) {
  constexpr int most = 1000;
  constexpr int unlimited = 1 << 20;
  std::mt19937 random(0);
  Arguments arguments = make_arguments(op, dtype, {{3}, 6}, 0, random);
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  for (GuardedTensor& each : arguments.inputs) inputs.push_back(each.view());
  for (GuardedTensor& each : arguments.outputs) outputs.push_back(each.view());
  ScarceExecution ample(unlimited);
  ASSERT_TRUE(run_arguments(op, arguments, ample).ok());
  const auto expected = outputs_of(arguments);
  int count = 0;
  for (bool has_rest = false; !has_rest; ++count) {
    ASSERT_LT(count, most);
    ScarceExecution execution(of_workspace ? count : unlimited);
    if (!of_workspace) allocations = count;
    const Status status = run(op, inputs, outputs, arguments.attributes, execution);
    has_rest = of_workspace ? execution.has_rest() : allocations > 0;
    allocations = -1;
    if (has_rest) {
      EXPECT_TRUE(status.ok()) << status.message();
    } else {
      EXPECT_TRUE(status.ok() || status.code() == Status::Code::out_of_memory) << status.message();
    }
    for (GuardedTensor& output : arguments.outputs) EXPECT_TRUE(output.intact());
    ScarceExecution again(unlimited);
    ASSERT_TRUE(run_arguments(op, arguments, again).ok());
    EXPECT_EQ(outputs_of(arguments), expected);
  }
}

TEST(Run, EveryAllocationMayFail) {
  for (const Op& op : op_table()) {
    for (const DType dtype : dtypes_of(op)) {
      for (const bool of_workspace : {true, false}) {
        SCOPED_TRACE(std::string(op.name) + " " + std::string(name_of(dtype)));
        expect_errors(op, dtype, of_workspace);
      }
    }
  }
}

TEST(Run, OutOfMemoryErrorsDoNotAllocate) {
  const Status of_bad_alloc = run_throwing<throw_bad_alloc>();
  const Status of_other = run_throwing<throw_without_memory>();
  for (const Status* status : {&of_bad_alloc, &of_other}) {
    EXPECT_EQ(status->code(), Status::Code::out_of_memory);
    EXPECT_EQ(status->message(), "out of memory");
  }
}

}  // namespace
}  // namespace cudarelu::testing

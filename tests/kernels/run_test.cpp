// Tests of run(): replacements of absent inputs, checks of values, and exceptions.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <stdexcept>

#include "arguments.h"
#include "cudarelu/define_module.h"

namespace {
thread_local bool no_memory = false;  // true: every allocation on this thread fails
}  // namespace

// Not inlined, since the compiler warns if it inlines only one function of a pair.
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const memory = no_memory ? nullptr : std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
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
            "knn_query: offset[1] is 10, over dimension n, which is 9");
  EXPECT_EQ(run_knn({4, 9}, {9, 8}).message(),
            "knn_query: new_offset[1] is 8, less than 9 before it");
}

/// Runs an op with this signature on the CPU. Its output is one int64.
template <Kernel kernel>
Status run_signature(const char* signature, std::span<const TensorView> inputs) {
  Op op;
  op.name = "f";
  op.signature = parse_signature(signature);
  op.cpu = detail::entry<kernel>;
  std::int64_t element = 0;
  const Sizes one{1};
  const TensorView output{&element, DType::int64, one};
  SerialExecution execution(0);
  return run(op, inputs, {&output, 1}, {}, execution);
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
            "f: o[1] is 3, over dimension n, which is 2");
  EXPECT_TRUE(
      run_signature<succeed>("f(x: T[n], w: T[n]? > 0 = 1) -> y: i64[1]", std::array{rows, absent})
          .ok());
  EXPECT_EQ(run_signature<succeed>("f(x: T[n], o: offsets(n)[b], u: T[m]?, v: T[m]? = x, "
                                   "p: offsets(m)[b]? = o) -> y: i64[1]",
                                   std::array{rows, ends, absent, absent, ends})
                .message(),
            "f: o[1] is 3, over dimension n, which is 2");
}

TEST(Run, ElementsOfAnyTypeMustBePositive) {
  std::vector<std::int32_t> x{2, 0};
  const Sizes two{2};
  const TensorView input{x.data(), DType::int32, two};
  EXPECT_EQ(run_signature<succeed>("f(x: i32[n] > 0) -> y: i64[1]", std::array{input}).message(),
            "f: x[1] is 0, but must be over 0");
}

/// Returns the status of run() for a kernel that throws.
template <Kernel kernel>
Status run_throwing() {
  std::vector<float> x(2);
  const Sizes two{2};
  const TensorView input{x.data(), DType::float32, two};
  Status status = run_signature<kernel>("f(x: T[n]) -> y: i64[1]", std::array{input});
  no_memory = false;
  return status;
}

const std::string long_text(100, 'x');  // too long for the internal buffer of std::string

Status throw_text(const Call& /*call*/) { throw std::runtime_error(long_text); }
Status throw_number(const Call& /*call*/) { throw 1; }
Status throw_bad_alloc(const Call& /*call*/) {
  no_memory = true;
  throw std::bad_alloc();
}
Status throw_without_memory(const Call& /*call*/) {
  const std::runtime_error error(long_text);
  no_memory = true;
  throw error;  // a copy shares the text
}

TEST(Run, ExceptionsBecomeErrors) {
  const Status status = run_throwing<throw_text>();
  EXPECT_EQ(status.code(), Status::Code::internal);
  EXPECT_EQ(status.message(), long_text);
  EXPECT_EQ(run_throwing<throw_number>().code(), Status::Code::internal);
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

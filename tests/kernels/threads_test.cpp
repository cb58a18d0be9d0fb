// Tests of modules that several threads use: calls of all ops at the same time, and modules that
// are opened and added during calls. `make tsan` runs them under ThreadSanitizer.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <memory>
#include <thread>

#include "arguments.h"

namespace cudarelu::testing {
namespace {

constexpr std::size_t thread_count = 16;

/// Calls body(number) in 16 threads, which begin at the same time.
template <class F>
void in_threads(const F& body) {
  std::barrier<> start(thread_count);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      body(i);
    });
  }
}

/// Large enough that loops of elements and rows have several parts.
Dimensions dimensions_of(const Op& op) {
  if (named_dimensions(op) > 4) return {{3}, 13};
  if (op.uses_gemm) return {{50}, 40};
  return {{70, 17}, 40};
}

/// Returns the bytes of all outputs of a call on the host's own threads.
std::vector<std::uint8_t> result_of(const Op& op, DType dtype) {
  std::mt19937 random(0);
  Arguments arguments = make_arguments(op, dtype, dimensions_of(op), 0, random);
  HostExecution execution(DeviceType::cpu, 0, nullptr);
  const Status status = run_arguments(op, arguments, execution);
  EXPECT_TRUE(status.ok()) << op.name << ": " << status.message();
  std::vector<std::uint8_t> bytes;
  for (GuardedTensor& each : arguments.outputs) {
    EXPECT_TRUE(each.intact()) << op.name;
    bytes.insert(bytes.end(), each.data().begin(), each.data().end());
  }
  return bytes;
}

TEST(Threads, CallOpsOfOneModule) {
  struct Expected {
    const Op& op;
    DType dtype;
    std::vector<std::uint8_t> bytes;
  };
  std::vector<Expected> all;
  for (const Op& op : op_table()) {
    const DType dtype = dtypes_of(op).front();
    all.push_back({op, dtype, result_of(op, dtype)});
  }
  in_threads([&](std::size_t number) {
    // Each thread begins with another op, so that different ops run at the same time.
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Expected& each = all[(i + number * all.size() / thread_count) % all.size()];
      EXPECT_EQ(result_of(each.op, each.dtype), each.bytes) << each.op.name;
    }
  });
}

TEST(Threads, CallOneOp) {
  const Op& op = *find_own("softmax");
  const auto expected = result_of(op, DType::float32);
  in_threads([&](std::size_t) { EXPECT_EQ(result_of(op, DType::float32), expected); });
}

/// Some threads open a module, one of them adds it, and others find its ops and call them, while
/// the rest calls ops of this one.
TEST(Threads, OpenAndAddAModuleDuringCalls) {
  const Op& own = *find_own("relu");
  const auto expected = result_of(own, DType::float32);
  in_threads([&](std::size_t number) {
    if (number < thread_count / 2) {
      std::unique_ptr<Module> module = open_module(CUDARELU_MY_OPS);
      EXPECT_EQ(module->name, "my");
      EXPECT_FALSE(result_of(module->ops.front(), DType::float32).empty());
      if (number == 0) add_module(std::move(module));
    } else if (number < thread_count * 3 / 4) {
      const Op* op = nullptr;
      while (op == nullptr) {
        op = find_op("my::swish", *own.module);
        std::this_thread::yield();
      }
      EXPECT_FALSE(result_of(*op, DType::float32).empty());
      EXPECT_EQ(find_engines(), own.module->engines);
    } else {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(result_of(own, DType::float32), expected);
    }
  });
}

}  // namespace
}  // namespace cudarelu::testing

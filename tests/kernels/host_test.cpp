// Tests of what readers share whose hosts lend no threads or no matrix product.
#include "cudarelu/host.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>

#include "arguments.h"

namespace cudarelu::testing {
namespace {

class Threads : public TaskQueue {
 public:
  explicit Threads(int count) : count_(count) {}
  ~Threads() override {
    for (std::thread& thread : threads_) thread.join();
  }
  int threads() const override { return count_; }
  bool schedule(void (*task)(void*), void* state) override {
    threads_.emplace_back(task, state);
    return true;
  }

 private:
  int count_;
  std::vector<std::thread> threads_;
};

/// Tasks that run after the loop is over.
class Late final : public TaskQueue {
 public:
  int threads() const override { return 4; }
  bool schedule(void (*task)(void*), void* state) override {
    tasks_.emplace_back(task, state);
    return true;
  }
  void run() {
    for (auto& [task, state] : tasks_) task(state);
  }

 private:
  std::vector<std::pair<void (*)(void*), void*>> tasks_;
};

class Refuses final : public TaskQueue {
 public:
  int threads() const override { return 4; }
  bool schedule(void (* /*task*/)(void*), void* /*state*/) override { return false; }
};

/// Whether a loop visits each number below n once, in parts of at least `grain`.
void expect_all(TaskQueue& queue, std::int64_t n, std::int64_t grain) {
  std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
  parallel_for(queue, n, grain, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_TRUE(end - begin >= grain || end == n);
    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  for (const auto& count : visits) ASSERT_EQ(count, 1);
}

TEST(ParallelFor, VisitsEveryNumberOnce) {
  for (const std::int64_t n : {0, 1, 7, 64, 1000, 12345}) {
    for (const std::int64_t grain : {0, 1, 16, 5000}) {
      Threads four(4);
      Threads one(1);
      Late late;
      Refuses refuses;
      for (TaskQueue* queue :
           {static_cast<TaskQueue*>(&four), static_cast<TaskQueue*>(&one),
            static_cast<TaskQueue*>(&late), static_cast<TaskQueue*>(&refuses), &own_threads()}) {
        expect_all(*queue, n, grain);
      }
      late.run();
    }
  }
}

TEST(ParallelFor, CanBeNested) {
  std::atomic<std::int64_t> sum = 0;
  parallel_for(own_threads(), 100, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parallel_for(own_threads(), 100, 1, [&](std::int64_t b, std::int64_t e) { sum += e - b; });
    }
  });
  EXPECT_EQ(sum, 10000);
}

/// Whether the library's own threads run a task within a minute.
bool own_threads_run() {
  std::atomic<bool> done = false;
  const auto task = [](void* state) { *static_cast<std::atomic<bool>*>(state) = true; };
  if (!own_threads().schedule(task, &done)) return false;
  for (int i = 0; i < 60'000 && !done; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done;
}

/// Calls a function in a forked process and returns its result.
bool in_fork(bool (*function)()) {
  const pid_t child = fork();
  if (child == 0) _exit(function() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status == 0;
}

TEST(OwnThreads, RunInAForkedProcess) {
  if (own_threads().threads() < 2) GTEST_SKIP() << "OMP_NUM_THREADS is 1, or one processor";
  EXPECT_TRUE(own_threads_run());
  EXPECT_TRUE(in_fork(own_threads_run));
}

TEST(OwnThreads, RefuseTasksIfNoneCanBeStarted) {
  if (own_threads().threads() < 2) GTEST_SKIP() << "OMP_NUM_THREADS is 1, or one processor";
  EXPECT_TRUE(in_fork([] {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{1} << 47);  // more than there are addresses
    pthread_setattr_default_np(&attributes);
    const auto never = [](void*) { _exit(2); };
    return !own_threads().schedule(never, nullptr) && !own_threads().schedule(never, nullptr);
  }));
}

TEST(Guarded, ReturnsWhatIsThrown) {
  const Op& op = *own_module().find("relu");
  EXPECT_TRUE(guarded([] { check({}); }).ok());
  const Status status = guarded([&] { fail(Status::Code::unsupported_dtype, op, "no"); });
  EXPECT_EQ(status.code(), Status::Code::unsupported_dtype);
  EXPECT_EQ(status.message(), "relu: no");
  EXPECT_EQ(guarded([] { throw std::bad_alloc(); }).code(), Status::Code::out_of_memory);
  const Status internal = guarded([] { throw std::runtime_error("broken"); });
  EXPECT_EQ(internal.code(), Status::Code::internal);
  EXPECT_EQ(internal.message(), "broken");
}

TEST(HostCall, RunsAnOpAndChecksOutputs) {
  HostCall call(*own_module().find("scale"));
  std::array<float, 2> x{1, 3};
  std::array<float, 2> y{};
  const std::array<std::int64_t, 1> shape{2};
  const std::array<std::int64_t, 2> other{1, 2};
  ASSERT_EQ(call.inputs.size(), 1);
  call.inputs[0] = {x.data(), DType::float32, shape};
  call.attributes[0] = 2.0;
  ASSERT_TRUE(call.infer().ok());
  call.outputs[0] = {y.data(), DType::float64, shape};
  EXPECT_EQ(call.check_outputs().message(), "scale: y must be float32, not float64");
  EXPECT_EQ(absl_code_of(call.check_outputs()), 3);
  call.outputs[0] = {y.data(), DType::float32, other};
  EXPECT_EQ(call.check_outputs().message(), "scale: y must be [2], not [1, 2]");
  call.outputs[0] = {y.data(), DType::float32, shape};
  ASSERT_TRUE(call.check_outputs().ok());
  HostExecution execution(DeviceType::cpu, 0, nullptr);
  ASSERT_TRUE(call.run(execution).ok());
  EXPECT_EQ(y[1], 6);
  call.attributes[0] = std::int64_t{2};
  EXPECT_EQ(call.infer().message(), "scale: factor must be a floating-point number");
}

#if defined(__x86_64__)
TEST(WithSubnormals, RestoresTheStateOfTheThread) {
  volatile float tiny = std::numeric_limits<float>::denorm_min();
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040);
  EXPECT_EQ(tiny * 1.0f, 0);
  {
    const WithSubnormals environment;
    EXPECT_GT(tiny * 1.0f, 0);
  }
  EXPECT_EQ(tiny * 1.0f, 0);
  __builtin_ia32_ldmxcsr(before);
}
#endif

template <class T>
void expect_product(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, int form) {
  std::mt19937 random(1);
  const auto numbers = [&](std::int64_t size) {
    std::uniform_real_distribution<T> distribution(-1, 1);
    std::vector<T> values(static_cast<std::size_t>(size));
    for (T& value : values) value = distribution(random);
    return values;
  };
  const std::vector<T> a = numbers(batch * m * k);
  const std::vector<T> b = numbers(batch * k * n);
  const std::vector<T> bias = numbers(n);
  std::vector<T> d(static_cast<std::size_t>(batch * m * n + 1), T{7});
  Gemm gemm{.dtype = sizeof(T) == 4 ? DType::float32 : DType::float64,
            .batch = batch,
            .m = m,
            .n = n,
            .k = k,
            .a = a.data(),
            .b = b.data(),
            .d = d.data(),
            .a_transposed = (form & 1) != 0,
            .b_transposed = (form & 2) != 0,
            .bias = (form & 4) != 0 ? bias.data() : nullptr};
  (void)own_module();  // it has the engines
  HostExecution execution(DeviceType::cpu, 0, nullptr);
  const Status status = execution.matmul(gemm);
  ASSERT_TRUE(status.ok()) << status.message();
  const double limit = std::numeric_limits<T>::epsilon() * static_cast<double>(k + 1);
  for (std::int64_t matrix = 0; matrix < batch; ++matrix) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = gemm.bias != nullptr ? bias[static_cast<std::size_t>(j)] : 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const std::int64_t at_a = gemm.a_transposed ? l * m + i : i * k + l;
          const std::int64_t at_b = gemm.b_transposed ? j * k + l : l * n + j;
          sum += static_cast<double>(a[static_cast<std::size_t>(matrix * m * k + at_a)]) *
                 b[static_cast<std::size_t>(matrix * k * n + at_b)];
        }
        ASSERT_NEAR(d[static_cast<std::size_t>((matrix * m + i) * n + j)], sum, limit)
            << m << " " << n << " " << k << " form " << form;
      }
    }
  }
  EXPECT_EQ(d.back(), T{7});
}

TEST(PlainGemm, MultipliesInEveryForm) {
  for (int form = 0; form < 8; ++form) {
    for (const std::int64_t k : {1, 5, 320, 321, 700}) {
      expect_product<float>(1, 13, 33, k, form);
      expect_product<double>(2, 7, 17, k, form);
    }
    expect_product<float>(3, 1, 1, 2, form);
    expect_product<float>(1, 100, 300, 40, form);
    expect_product<double>(1, 97, 257, 64, form);
    expect_product<float>(1, 1, 1000, 64, form);
    expect_product<float>(1, 500, 1, 64, form);
  }
}

TEST(PlainGemm, MissingMemoryIsAnError) {
  class NoMemory final : public HostExecution {
   public:
    using HostExecution::HostExecution;
    void* allocate(std::size_t /*bytes*/) override { return nullptr; }
  };
  (void)own_module();
  std::array<float, 4> matrix{};
  NoMemory execution(DeviceType::cpu, 0, nullptr);
  const Status status = execution.matmul({.dtype = DType::float32,
                                          .batch = 1,
                                          .m = 2,
                                          .n = 2,
                                          .k = 2,
                                          .a = matrix.data(),
                                          .b = matrix.data(),
                                          .d = matrix.data()});
  EXPECT_EQ(status.code(), Status::Code::out_of_memory);
}

}  // namespace
}  // namespace cudarelu::testing

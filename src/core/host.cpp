#include "cudarelu/host.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <tuple>

#include "cudarelu/detail/boundary.h"

namespace cudarelu {
namespace {

/// A loop whose parts are taken by the caller and by tasks. A task may start after the loop is
/// done, so the tasks own it.
struct Loop {
  Loop(std::int64_t n, std::int64_t size, FunctionRef<void(std::int64_t, std::int64_t)> body)
      : n(n), size(size), parts((n + size - 1) / size), body(body) {}

  /// Runs parts until all have been taken.
  void take_parts() {
    const WithSubnormals environment;
    for (std::int64_t part = next++; part < parts; part = next++) {
      body(part * size, std::min(n, (part + 1) * size));
      if (++done == parts) done.notify_all();
    }
  }

  const std::int64_t n;
  const std::int64_t size;
  const std::int64_t parts;
  const FunctionRef<void(std::int64_t, std::int64_t)> body;  // of the caller: valid for its parts
  std::atomic<std::int64_t> next = 0;
  std::atomic<std::int64_t> done = 0;
};

class OwnThreads final : public TaskQueue {
 public:
  int threads() const override { return count_; }

  /// Starts a thread with each of the first tasks: the calling thread works too, so one fewer.
  bool schedule(void (*task)(void*), void* state) override {
    const std::scoped_lock lock(mutex_);
    try {
      if (running_ < count_ - 1 && start()) ++running_;
      if (running_ == 0) return false;
      tasks_.push_back({task, state});
    } catch (const std::bad_alloc&) {
      return false;
    }
    ready_.notify_one();
    return true;
  }

 private:
  struct Task {
    void (*run)(void*);
    void* state;
  };

  static int count_processors() {
    if (const char* const text = std::getenv("OMP_NUM_THREADS")) {
      int number = 0;
      const auto read = std::from_chars(text, text + std::strlen(text), number);
      if (read.ec == std::errc() && number > 0) return number;
    }
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }

  /// Returns false if the system has no thread; those that run do the work then.
  bool start() {
    try {
      std::thread([this] { serve(); }).detach();
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [this] { return !tasks_.empty(); });
      const Task task = tasks_.front();
      tasks_.pop_front();
      lock.unlock();
      task.run(task.state);
    }
  }

  const int count_ = count_processors();
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Task> tasks_;
  int running_ = 0;
};

// The control register of floating-point arithmetic, and its bits that replace subnormals by 0.
#if defined(__x86_64__)
constexpr std::uint64_t flushes = 0x8040;
std::uint64_t control() { return __builtin_ia32_stmxcsr(); }
void set_control(std::uint64_t bits) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(bits)); }
#elif defined(__aarch64__)
constexpr std::uint64_t flushes = std::uint64_t{1} << 24;
std::uint64_t control() { return __builtin_aarch64_get_fpcr64(); }
void set_control(std::uint64_t bits) { __builtin_aarch64_set_fpcr64(bits); }
#else
constexpr std::uint64_t flushes = 0;
std::uint64_t control() { return 0; }
void set_control(std::uint64_t /*bits*/) {}
#endif

}  // namespace

void fail(Status::Code code, const Op& op, const std::string& what) {
  throw Failure(detail::error(code, op, what));
}

int absl_code_of(const Status& error) {
  switch (error.code()) {
    case Status::Code::invalid_argument:
    case Status::Code::unsupported_dtype:
      return 3;  // INVALID_ARGUMENT
    case Status::Code::unavailable:
      return 12;  // UNIMPLEMENTED
    case Status::Code::out_of_memory:
      return 8;  // RESOURCE_EXHAUSTED
    default:
      return 13;  // INTERNAL
  }
}

Status HostCall::infer() {
  return cudarelu::infer(op, std::span<const TensorView>(inputs), attributes, types);
}

Status HostCall::check_outputs() const {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string name(op.signature.outputs[i].name);
    if (outputs[i].dtype != types[i].dtype) {
      return detail::error(Status::Code::unsupported_dtype, op,
                           name + " must be " + std::string(name_of(types[i].dtype)) + ", not " +
                               std::string(name_of(outputs[i].dtype)));
    }
    if (!std::ranges::equal(outputs[i].shape, types[i].shape.span())) {
      return detail::error(Status::Code::invalid_argument, op,
                           name + " must be " + detail::text_of(types[i].shape.span()) + ", not " +
                               detail::text_of(outputs[i].shape));
    }
  }
  return {};
}

Status HostCall::run(Execution& execution) const {
  const WithSubnormals environment;
  return cudarelu::run(op, inputs, outputs, attributes, execution);
}

WithSubnormals::WithSubnormals() : before_(control()) {
  if ((before_ & flushes) != 0) set_control(before_ & ~flushes);
}

WithSubnormals::~WithSubnormals() {
  if ((before_ & flushes) != 0) set_control(before_);
}

TaskQueue& own_threads() {
  static auto* threads = new OwnThreads;  // never destroyed: its threads run until the end
  // A forked process has none of them, and perhaps a locked mutex.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { threads = new OwnThreads; });
  return *threads;
}

void parallel_for(TaskQueue& queue, std::int64_t n, std::int64_t grain,
                  FunctionRef<void(std::int64_t, std::int64_t)> body) {
  if (n <= 0) return;
  // More parts than threads, since other work may delay a thread.
  const std::int64_t most = 4 * static_cast<std::int64_t>(queue.threads());
  const std::int64_t least = std::max<std::int64_t>(grain, 1);
  const std::int64_t size = std::max(least, (n + most - 1) / most);
  if (queue.threads() < 2 || n <= size) return body(0, n);
  std::shared_ptr<Loop> loop;
  try {
    loop = std::make_shared<Loop>(n, size, body);
    const std::int64_t helpers = std::min<std::int64_t>(queue.threads(), loop->parts) - 1;
    for (std::int64_t i = 0; i < helpers; ++i) {
      auto share = std::make_unique<std::shared_ptr<Loop>>(loop);
      const auto task = [](void* state) {
        const std::unique_ptr<std::shared_ptr<Loop>> mine(
            static_cast<std::shared_ptr<Loop>*>(state));
        (*mine)->take_parts();
      };
      if (!queue.schedule(task, share.get())) break;
      std::ignore = share.release();
    }
  } catch (const std::bad_alloc&) {  // this thread does the rest
    if (loop == nullptr) return body(0, n);
  }
  loop->take_parts();
  for (std::int64_t done = loop->done; done < loop->parts; done = loop->done) loop->done.wait(done);
}

void* HostExecution::allocate(std::size_t bytes) {
  if (device_type == DeviceType::cuda) return nullptr;
  constexpr std::size_t alignment = 64;
  try {
    workspace_.reserve(workspace_.size() + 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  return workspace_.emplace_back(std::aligned_alloc(alignment, rounded)).get();
}

Status HostExecution::matmul(const Gemm& gemm) { return engine_matmul(gemm, *this); }

}  // namespace cudarelu

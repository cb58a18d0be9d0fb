// What readers share whose hosts lend threads or memory only in part: JAX, tvm-ffi, TensorFlow.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cudarelu/op.h"

/// Each module defines it.
extern "C" const cudarelu_module* cudarelu_get_module();

namespace cudarelu {

/// The module of this library, for the readers that it contains. Throws std::invalid_argument if
/// its declarations are not valid.
inline const Module& own_module() {
  static const Module* const module = &add_module(read_module(*cudarelu_get_module()));
  return *module;
}

/// Arithmetic with subnormal numbers in this thread, while the object exists. XLA and TensorFlow
/// replace them by 0 in their threads, which would change the results of ops.
class WithSubnormals {
 public:
  WithSubnormals();
  ~WithSubnormals();
  WithSubnormals(const WithSubnormals&) = delete;
  WithSubnormals& operator=(const WithSubnormals&) = delete;

 private:
  std::uint64_t before_;
};

/// Threads that run tasks some time after they are scheduled, or never.
class TaskQueue {
 public:
  virtual ~TaskQueue() = default;
  virtual int threads() const = 0;
  /// Returns false if the task will not run.
  virtual bool schedule(void (*task)(void*), void* state) = 0;
};

/// The threads of this library, for hosts that lend none: as many as the process has processors, or
/// OMP_NUM_THREADS. They start with the first task.
TaskQueue& own_threads();

/// Calls body(begin, end) for parts of [0, n) of at least `grain` items, in this thread and in
/// those of the queue; returns when all are done. Does not wait for a task that has not started, so
/// it cannot block in a thread of the queue.
void parallel_for(TaskQueue& queue, std::int64_t n, std::int64_t grain,
                  FunctionRef<void(std::int64_t, std::int64_t)> body);

/// The services for a call on the CPU or on CUDA, of which the host lends what its subclass
/// overrides. The matrix product on the CPU is that of the module `cudarelu`.
class HostExecution : public Execution {
 public:
  using Execution::Execution;

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    cudarelu::parallel_for(own_threads(), n, grain, body);
  }
  void* allocate(std::size_t bytes) override;
  Status gemm(const Gemm& gemm) override;

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<void, Free>> workspace_;
};

}  // namespace cudarelu

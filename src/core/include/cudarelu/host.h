// For readers whose hosts lend only some services of a call, threads or memory: JAX, tvm-ffi and
// TensorFlow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cudarelu/infer.h"
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

/// An error in a callback of a host, which guarded() returns.
struct Failure : std::exception {
  explicit Failure(Status status) : status(std::move(status)) {}

  Status status;
};

/// Throws the error, if there is one, as a Failure.
inline void check(Status status) {
  if (!status.ok()) [[unlikely]] {
    throw Failure(std::move(status));
  }
}

/// Throws a Failure with the message "<op>: <what>".
[[noreturn]] void fail(Status::Code code, const Op& op, const std::string& what);

/// Runs code in a callback of a host, and converts exceptions to a status.
template <class F>
Status guarded(const F& code) noexcept {
  try {
    code();
    return {};
  } catch (Failure& failure) {
    return std::move(failure.status);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  } catch (const std::exception& error) {
    return {Status::Code::internal, error.what()};
  } catch (...) {
    return {Status::Code::internal, "unknown exception"};
  }
}

/// The code of an error in Abseil's statuses, which XLA and TensorFlow use.
int absl_code_of(const Status& error);

/// Memory for at most n objects, of which only the first ones are constructed: to clear it would
/// take longer than a small op.
template <class T, std::size_t n>
class UninitializedArray {
 public:
  std::span<T> construct(std::size_t count) {
    T* const first = reinterpret_cast<T*>(memory_.data());
    std::uninitialized_default_construct_n(first, count);
    return {first, count};
  }

 private:
  static_assert(std::is_trivially_destructible_v<T>);
  alignas(T) std::array<std::byte, n * sizeof(T)> memory_;
};

/// A call of an op: the reader fills the inputs and attributes, calls infer(), and fills the
/// outputs with tensors of the inferred types. Its memory is not on the heap: a small op takes less
/// time than an allocation.
class HostCall {
  UninitializedArray<TensorView, max_inputs> input_room_;
  UninitializedArray<TensorView, max_outputs> output_room_;
  UninitializedArray<Attribute, max_attributes> attribute_room_;
  UninitializedArray<OutputType<std::int64_t>, max_outputs> type_room_;

 public:
  explicit HostCall(const Op& op) : op(op) {}
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  /// Checks the inputs and attributes, and sets `types`.
  Status infer();
  /// Checks the dtypes and shapes of outputs that the host has not made from `types`.
  Status check_outputs() const;
  /// Runs the kernel.
  Status run(Execution& execution) const;

  const Op& op;
  // One for each input, attribute and output of the signature.
  const std::span<TensorView> inputs = input_room_.construct(op.signature.inputs.size());
  const std::span<Attribute> attributes = attribute_room_.construct(op.signature.attributes.size());
  const std::span<TensorView> outputs = output_room_.construct(op.signature.outputs.size());
  const std::span<OutputType<std::int64_t>> types =
      type_room_.construct(op.signature.outputs.size());
};

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

/// The services of a call, on the CPU or on CUDA. A subclass overrides those that its host lends.
/// Matrix products on the CPU are computed by the module `cudarelu`.
class HostExecution : public Execution {
 public:
  using Execution::Execution;

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    cudarelu::parallel_for(own_threads(), n, grain, body);
  }
  void* allocate(std::size_t bytes) override;
  Status matmul(const Gemm& gemm) override;

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<void, Free>> workspace_;
};

}  // namespace cudarelu

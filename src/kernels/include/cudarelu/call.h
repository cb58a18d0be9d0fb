// One call of an op: tensors, attributes, and what the host lends for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <variant>

#include "cudarelu/gemm.h"
#include "cudarelu/op.h"

namespace cudarelu {

/// A dense row-major tensor that somebody else owns. Where Op::uses_gemm, an input may be
/// transposed: a matrix, or matrices whose leading dimensions are not part of their rows.
struct TensorView {
  void* data = nullptr;  // may be null where a size is 0
  DType dtype = DType::float32;
  std::span<const std::int64_t> shape;
  bool present = true;      // false: an optional input that was left out
  bool transposed = false;  // the last two dimensions lie in memory the other way round

  std::int64_t size() const {
    std::int64_t product = 1;
    for (const std::int64_t dim : shape) product *= dim;
    return product;
  }
};

/// The value of an attribute: floating point, or integer; of an enumeration, a label's position.
using Attribute = std::variant<double, std::int64_t>;

enum class DeviceType : std::uint8_t { cpu, cuda };

/// A reference to a callable, valid while the callable lives.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
  FunctionRef(F&& f)  // NOLINT: converts like the callable that it refers to
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

/// What the host lends for one call. The core never chooses a stream or a thread pool, never
/// allocates device memory and never waits for the device.
class Execution {
 public:
  Execution(DeviceType device_type, int device_index, void* stream)
      : device_type(device_type), device_index(device_index), stream(stream) {}
  virtual ~Execution() = default;

  /// Runs body(begin, end) over parts of [0, n) that hold at least `grain` items (the last may hold
  /// fewer), on the host's threads; returns when all are done. The body must not throw.
  virtual void parallel_for(std::int64_t n, std::int64_t grain,
                            FunctionRef<void(std::int64_t, std::int64_t)> body) = 0;

  /// Workspace on the call's device, aligned to 16 bytes or more; nullptr where there is none to
  /// be had. It stays valid for the work that this call puts on the stream; the host takes it back.
  virtual void* allocate(std::size_t bytes) = 0;

  /// The host's own matrix product, on the CPU and its threads, where no size is 0: d = a b + bias.
  /// What follows is not looked at. Of float32, float64, and what has_gemm() says.
  virtual Status gemm(const Gemm& gemm) = 0;

  /// Whether the host has a product of float16 or bfloat16 that is faster than that of float32.
  virtual bool has_gemm(DType /*half*/) const { return false; }

  /// Whether products of float32 on CUDA may round their factors to TF32.
  virtual bool allow_tf32() const { return false; }

  const DeviceType device_type;
  const int device_index;  // of the CUDA device; 0 on the CPU
  void* const stream;      // cudaStream_t; nullptr on the CPU

 protected:
  Execution(const Execution&) = default;
};

struct Call {
  const Op& op;
  std::span<const TensorView> inputs;     // one for each input of the signature
  std::span<const TensorView> outputs;    // allocated by the host, of the shapes that infer() gives
  std::span<const Attribute> attributes;  // one for each attribute of the signature
  Execution& execution;

  double real(std::size_t attribute) const { return std::get<double>(attributes[attribute]); }
  std::int64_t integer(std::size_t attribute) const {
    return std::get<std::int64_t>(attributes[attribute]);
  }
};

/// Runs a call whose dtypes, shapes and attributes infer() has accepted: puts stand-ins in the
/// place of absent inputs, checks offsets where they lie in host memory, makes the call's CUDA
/// device current for its length, and runs the kernel. Offsets in device memory are not looked at,
/// since that would wait for the device: there, a kernel keeps within the tensors whatever they
/// hold.
Status run(const Call& call) noexcept;

}  // namespace cudarelu

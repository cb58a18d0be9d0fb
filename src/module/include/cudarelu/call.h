// One call of an op: tensors, attributes, and the services of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>

#include "cudarelu/detail/status.h"
#include "cudarelu/gemm.h"

namespace cudarelu {

/// A non-owning view of a tensor, dense and row-major, with two exceptions:
/// - Call::strides has strides for it.
/// - `transposed` is set: the last two dimensions are stored in the other order. Only the first two
///   inputs of an op that uses_gemm can be so, if each is a matrix or a batch of matrices.
struct TensorView {
  void* data = nullptr;  // may be null where a size is 0
  DType dtype = DType::float32;
  std::span<const std::int64_t> shape;
  bool present = true;      // false: an optional input that is absent
  bool transposed = false;  // the last two dimensions are swapped in memory

  std::int64_t size() const {
    std::int64_t product = 1;
    for (const std::int64_t dim : shape) product *= dim;
    return product;
  }
};

/// The value of an attribute: a floating-point number, an integer, or the position of a label.
using Attribute = std::variant<double, std::int64_t>;

enum class DeviceType : std::uint8_t { cpu, cuda };

/// A non-owning reference to a callable, which must outlive it.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
  FunctionRef(F&& f)  // NOLINT: implicit, for lambdas as arguments
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

/// The services of the host for one call. The core never chooses a stream or a thread pool, never
/// allocates device memory and never waits for the device.
class Execution {
 public:
  Execution(DeviceType device_type, int device_index, void* stream)
      : device_type(device_type), device_index(device_index), stream(stream) {}
  virtual ~Execution() = default;

  /// Runs body(begin, end) on the host's threads for parts of [0, n) of at least `grain` items (the
  /// last may have fewer). Returns when all are done. The body must not throw.
  virtual void parallel_for(std::int64_t n, std::int64_t grain,
                            FunctionRef<void(std::int64_t, std::int64_t)> body) = 0;

  /// Returns workspace on the call's device, aligned to 16 bytes or more, or nullptr if the host
  /// cannot provide it. It is valid for the work that this call enqueues; the host frees it.
  virtual void* allocate(std::size_t bytes) = 0;

  /// Computes d = a b + bias on the CPU with the host's own matrix product and threads. No size is
  /// 0. Ignores the activation, the sum and the other matrix. For float32, float64, and dtypes that
  /// has_matmul() names.
  virtual Status matmul(const Gemm& gemm) = 0;

  /// Whether matmul() supports float16 or bfloat16 and is faster than in float32.
  virtual bool has_matmul(DType /*half*/) const { return false; }

  /// Whether float32 products on CUDA may round their factors to TF32.
  virtual bool allow_tf32() const { return false; }

  const DeviceType device_type;
  const int device_index;  // of the CUDA device; 0 on the CPU
  void* const stream;      // cudaStream_t; nullptr on the CPU

 protected:
  Execution(const Execution&) = default;
};

/// The strides of tensors, in elements, for an op with OpSpec::strided. `inputs` and `outputs` are
/// null, or have a pointer for each tensor; a tensor whose pointer is null is dense. The others
/// have a stride for each dimension of the signature, where a leading * is one dimension: the
/// tensor's own leading dimensions can be merged into one. Example: q: T[*, h, s, d] of shape
/// [2, 3, 8, 100, 64] has 4 strides, of which the first is that of the 2 x 3 leading indices. The
/// last stride is 1, the stride of a dimension of size 1 is arbitrary, and strides of an input may
/// be 0. Only tensors for which Parameter::may_be_strided() is true have strides.
struct Strides {
  const std::int64_t* const* inputs = nullptr;
  const std::int64_t* const* outputs = nullptr;
};

struct Call {
  std::string_view op;                    // its name, for messages
  std::span<const TensorView> inputs;     // one for each input of the signature
  std::span<const TensorView> outputs;    // allocated by the host, of the shapes from infer()
  std::span<const Attribute> attributes;  // one for each attribute of the signature
  Execution& execution;
  Strides strides = {};

  double real(std::size_t attribute) const { return std::get<double>(attributes[attribute]); }
  bool boolean(std::size_t attribute) const { return integer(attribute) != 0; }
  std::int64_t integer(std::size_t attribute) const {
    return std::get<std::int64_t>(attributes[attribute]);
  }
};

/// A kernel of an op.
using Kernel = Status (*)(const Call&);

}  // namespace cudarelu

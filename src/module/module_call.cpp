// The module's side of a call from a reader.

#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>

#include "cudarelu/detail/define_module.h"

namespace cudarelu::detail {
namespace {

/// The host's services, as the reader lends them.
class BorrowedExecution final : public Execution {
 public:
  explicit BorrowedExecution(const cudarelu_call& call)
      : Execution(call.device_type == CUDARELU_CPU ? DeviceType::cpu : DeviceType::cuda,
                  call.device_index, call.stream),
        services_(*call.services),
        host_(call.host) {}

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    if (n <= grain) return body(0, n);  // one part, for which no host needs another thread
    const auto run = [](void* state, std::int64_t begin, std::int64_t end) {
      (*static_cast<FunctionRef<void(std::int64_t, std::int64_t)>*>(state))(begin, end);
    };
    services_.parallel_for(host_, n, grain, run, &body);
  }
  void* allocate(std::size_t bytes) override { return services_.allocate(host_, bytes); }
  Status matmul(const Gemm& gemm) override {
    const cudarelu_gemm product = to_c(gemm);
    cudarelu_error error;
    return from_c(services_.matmul(host_, &product, &error), error);
  }
  bool has_matmul(DType half) const override {
    return services_.has_matmul(host_, static_cast<std::uint32_t>(half)) != 0;
  }
  bool allow_tf32() const override { return services_.allow_tf32(host_) != 0; }

 private:
  const cudarelu_services& services_;
  void* host_;
};

/// The C++ form of the attributes of a call.
class Attributes {
 public:
  explicit Attributes(const cudarelu_call& call)
      : count_(std::min<std::size_t>(call.attribute_count, max_attributes)) {
    for (std::size_t i = 0; i < count_; ++i) {
      std::construct_at(&items_[i], from_c(call.attributes[i]));
    }
  }
  std::span<const Attribute> span() const { return {items_.data(), count_}; }

 private:
  std::size_t count_;
  union {  // without initial values, which would cost as much as a small kernel
    std::array<Attribute, max_attributes> items_;
  };
};

/// Those of a reader that knows them.
Strides strides_of(const cudarelu_call& call) {
  constexpr std::size_t end = offsetof(cudarelu_call, output_strides) + sizeof(call.output_strides);
  if (call.size < end) return {};
  return {call.input_strides, call.output_strides};
}

/// Allocates nothing: there may be no memory.
void write_exception(const cudarelu_call& call, const char* what, cudarelu_error& error) {
  std::snprintf(error.message, sizeof(error.message), "%.*s: %s", static_cast<int>(call.op_length),
                call.op, what);
}

/// Calls use(call) with the arguments of a reader; converts exceptions to errors.
template <class Use>
cudarelu_code with_call(const cudarelu_call& from, cudarelu_error& error, const Use& use) noexcept {
  try {
    const Attributes attributes(from);
    BorrowedExecution execution(from);
    return use(Call{.op = {from.op, from.op_length},
                    .inputs = from_c(from.inputs, from.input_count),
                    .outputs = from_c(from.outputs, from.output_count),
                    .attributes = attributes.span(),
                    .execution = execution,
                    .strides = strides_of(from)});
  } catch (const std::bad_alloc&) {
    return to_c(Status::out_of_memory(), error);
  } catch (const std::exception& exception) {
    write_exception(from, exception.what(), error);
  } catch (...) {
    write_exception(from, "an exception of an unknown type", error);
  }
  return CUDARELU_INTERNAL;
}

}  // namespace

cudarelu_code run_kernel(const cudarelu_call& from, cudarelu_error& error,
                         FunctionRef<Status(const Call&)> kernel) noexcept {
  return with_call(from, error, [&](const Call& call) { return to_c(kernel(call), error); });
}

cudarelu_code run_product(const cudarelu_call& from, cudarelu_error& error,
                          Gemm (*gemm)(const Call&)) noexcept {
  return with_call(from, error, [&](const Call& call) {
    const cudarelu_gemm product = to_c(gemm(call));
    if (product.other != nullptr && !reads_other(*from.services)) {
      return to_c(too_old_for_other(call.op), error);
    }
    return from.services->fused_matmul(&from, &product, &error);
  });
}

}  // namespace cudarelu::detail

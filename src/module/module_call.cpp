// The module's side of a call from a reader.

#include <memory>
#include <new>

#include "cudarelu/define_module.h"

namespace cudarelu::detail {
namespace {

/// The host's services, as the reader lends them.
class LentExecution final : public Execution {
 public:
  explicit LentExecution(const cudarelu_call& call)
      : Execution(call.device_type == CUDARELU_CPU ? DeviceType::cpu : DeviceType::cuda,
                  call.device_index, call.stream),
        services_(*call.services),
        host_(call.host) {}

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    const auto run = [](void* state, std::int64_t begin, std::int64_t end) {
      (*static_cast<FunctionRef<void(std::int64_t, std::int64_t)>*>(state))(begin, end);
    };
    services_.parallel_for(host_, n, grain, run, &body);
  }
  void* allocate(std::size_t bytes) override { return services_.allocate(host_, bytes); }
  Status gemm(const Gemm& gemm) override {
    const cudarelu_gemm product = to_c(gemm);
    cudarelu_error error;
    return from_c(services_.gemm(host_, &product, &error), error);
  }
  bool has_gemm(DType half) const override {
    return services_.has_gemm(host_, static_cast<std::uint32_t>(half)) != 0;
  }
  bool allow_tf32() const override { return services_.allow_tf32(host_) != 0; }

 private:
  const cudarelu_services& services_;
  void* host_;
};

/// The C++ form of an array of a call, of at most n items.
template <class T, std::size_t n>
class Converted {
 public:
  template <class From>
  Converted(const From* items, std::size_t count) : count_(std::min(count, n)) {
    for (std::size_t i = 0; i < count_; ++i) std::construct_at(&items_[i], from_c(items[i]));
  }
  std::span<const T> span() const { return {items_.data(), count_}; }

 private:
  std::size_t count_;
  union {  // without initial values, which would cost as much as a small kernel
    std::array<T, n> items_;
  };
};

/// Calls use(call) with the arguments of a reader; converts exceptions to errors.
template <class Use>
cudarelu_code with_call(const cudarelu_call& from, cudarelu_error& error, const Use& use) noexcept {
  try {
    const Converted<TensorView, max_inputs> inputs(from.inputs, from.input_count);
    const Converted<TensorView, max_outputs> outputs(from.outputs, from.output_count);
    const Converted<Attribute, max_attributes> attributes(from.attributes, from.attribute_count);
    LentExecution execution(from);
    return use(Call{.op = {from.op, from.op_length},
                    .inputs = inputs.span(),
                    .outputs = outputs.span(),
                    .attributes = attributes.span(),
                    .execution = execution});
  } catch (const std::bad_alloc&) {
    return to_c(Status::out_of_memory(), error);
  } catch (const std::exception& exception) {
    const std::string_view what = exception.what();
    const std::size_t size = std::min(what.size(), sizeof(error.message) - 1);
    error.message[what.copy(error.message, size)] = '\0';
  } catch (...) {
    const std::string_view what = "an exception of an unknown type";
    error.message[what.copy(error.message, what.size())] = '\0';
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
    return from.services->product(&from, &product, &error);
  });
}

}  // namespace cudarelu::detail

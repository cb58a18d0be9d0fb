// The reader of op modules for XLA, and so for JAX: a handler of its foreign function interface for
// each platform, which every module exports. One handler serves all ops of its module.
//
// The attributes of a call: "_op", the name of the op; "_present", a bit for each input of the
// signature that has a buffer; and the attributes of the op, where a label is its position, and a
// floating-point number is itself or the integer with the bits of its float64: JAX takes attributes
// that compare equal, such as 0.0 and -0.0, for the same.

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "cudarelu/host.h"
#include "cudarelu/infer.h"
#include "xla_ffi.h"

namespace cudarelu::xla {
namespace {

std::optional<DType> dtype_of(Type type) {
  switch (type) {
    case Type::pred:
      return DType::boolean;
    case Type::f32:
      return DType::float32;
    case Type::f64:
      return DType::float64;
    case Type::f16:
      return DType::float16;
    case Type::bf16:
      return DType::bfloat16;
    case Type::s8:
      return DType::int8;
    case Type::u8:
      return DType::uint8;
    case Type::s32:
      return DType::int32;
    case Type::s64:
      return DType::int64;
  }
  return std::nullopt;
}

Error* error_of(const Api& api, const Status& status) {
  using Code = Status::Code;
  ErrorArguments arguments;
  arguments.message = status.message().c_str();
  switch (status.code()) {
    case Code::invalid_argument:
    case Code::unsupported_dtype:
      arguments.code = ErrorCode::invalid_argument;
      break;
    case Code::unavailable:
      arguments.code = ErrorCode::unimplemented;
      break;
    case Code::out_of_memory:
      arguments.code = ErrorCode::resource_exhausted;
      break;
    default:
      arguments.code = ErrorCode::internal;
  }
  return api.create_error(&arguments);
}

/// Whether a function of the API succeeded; otherwise, its error has been destroyed.
bool succeeded(const Api& api, Error* error) {
  if (error == nullptr) return true;
  DestroyArguments arguments;
  arguments.error = error;
  api.destroy_error(&arguments);
  return false;
}

/// Whether this version of XLA has a function of the API.
template <class F>
bool has(const Api& api, F Api::* function) {
  const auto* const place = reinterpret_cast<const char*>(&(api.*function));
  return place + sizeof(F) <= reinterpret_cast<const char*>(&api) + api.struct_size &&
         api.*function != nullptr;
}

/// XLA's threads for computations on the CPU.
class XlaThreads final : public TaskQueue {
 public:
  explicit XlaThreads(const CallFrame& frame) : frame_(frame) {
    ThreadCountArguments arguments;
    arguments.context = frame.context;
    arguments.count = &count_;
    if (!has(*frame.api, &Api::count_threads) ||
        !succeeded(*frame.api, frame.api->count_threads(&arguments))) {
      count_ = 1;
    }
  }
  int threads() const override { return static_cast<int>(count_); }
  bool schedule(void (*task)(void*), void* state) override {
    ScheduleArguments arguments;
    arguments.context = frame_.context;
    arguments.task = task;
    arguments.data = state;
    return succeeded(*frame_.api, frame_.api->schedule(&arguments));
  }

 private:
  const CallFrame& frame_;
  std::int64_t count_ = 1;
};

/// The CUDA device of this thread, which the driver knows; 0 if it has none.
int current_device() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto get = driver == nullptr
                       ? nullptr
                       : reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuCtxGetDevice"));
  int device = 0;
  return get != nullptr && get(&device) == 0 ? device : 0;
}

class XlaExecution final : public HostExecution {
 public:
  XlaExecution(const CallFrame& frame, DeviceType device)
      : HostExecution(device, device_index(frame, device), stream_of(frame, device)),
        frame_(frame),
        threads_(frame) {}

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    cudarelu::parallel_for(threads_, n, grain, body);
  }

  void* allocate(std::size_t bytes) override {
    if (device_type == DeviceType::cpu) return HostExecution::allocate(bytes);
    AllocateArguments arguments;
    arguments.context = frame_.context;
    arguments.size = bytes;
    arguments.alignment = 16;  // the largest that XLA accepts
    if (!succeeded(*frame_.api, frame_.api->allocate(&arguments))) return nullptr;
    return arguments.data;  // XLA frees it after the call, in the order of the stream
  }

 private:
  static void* stream_of(const CallFrame& frame, DeviceType device) {
    StreamArguments arguments;
    arguments.context = frame.context;
    const bool on_cuda = device == DeviceType::cuda;
    return on_cuda && succeeded(*frame.api, frame.api->get_stream(&arguments)) ? arguments.stream
                                                                               : nullptr;
  }

  /// XLA makes the device of a call current; not every version tells which one it is.
  static int device_index(const CallFrame& frame, DeviceType device) {
    if (device == DeviceType::cpu) return 0;
    DeviceArguments arguments;
    arguments.context = frame.context;
    const bool told = has(*frame.api, &Api::get_device) &&
                      succeeded(*frame.api, frame.api->get_device(&arguments));
    return told ? arguments.device : current_device();
  }

  const CallFrame& frame_;
  XlaThreads threads_;
};

/// The value of an attribute of the call; nullptr if there is none of that name and kind.
const void* find(const Attributes& attributes, std::string_view name, AttributeKind kind) {
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    const Text& each = *attributes.names[i];
    if (std::string_view(each.data, each.size) == name) {
      return attributes.kinds[i] == kind ? attributes.values[i] : nullptr;
    }
  }
  return nullptr;
}

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::optional<std::int64_t> integer_of(const Attributes& attributes, std::string_view name) {
  const auto* const number =
      static_cast<const Number*>(find(attributes, name, AttributeKind::number));
  if (number == nullptr) return std::nullopt;
  if (number->dtype == Type::s32) return read<std::int32_t>(number->value);
  if (number->dtype == Type::s64) return read<std::int64_t>(number->value);
  return std::nullopt;
}

std::optional<double> real_of(const Attributes& attributes, std::string_view name) {
  const auto* const number =
      static_cast<const Number*>(find(attributes, name, AttributeKind::number));
  if (number == nullptr) return std::nullopt;
  if (number->dtype == Type::f32) return read<float>(number->value);
  if (number->dtype == Type::f64 || number->dtype == Type::s64) return read<double>(number->value);
  return std::nullopt;
}

Status malformed(const std::string& what) {
  return {Status::Code::invalid_argument, "a call of the module " + std::string(own_module().name) +
                                              " by XLA is malformed: " + what};
}

/// A call whose memory is not on the heap: a small op takes less time than an allocation.
struct Arguments {
  std::array<TensorView, max_inputs> inputs;
  std::array<TensorView, max_outputs> outputs;
  std::array<Attribute, max_attributes> attributes;
};

Status view(const Buffer& buffer, TensorView& to) {
  const std::optional<DType> dtype = dtype_of(buffer.dtype);
  if (!dtype)
    return malformed("XLA's element type " + std::to_string(static_cast<int>(buffer.dtype)));
  to = {buffer.data, *dtype, {buffer.dims, static_cast<std::size_t>(buffer.rank)}, true};
  return {};
}

Status read_inputs(const Op& op, const CallFrame& frame, Arguments& to) {
  const std::optional<std::int64_t> present = integer_of(frame.attributes, "_present");
  if (!present) return malformed("there is no integer _present");
  std::int64_t next = 0;
  for (std::size_t i = 0; i < op.signature.inputs.size(); ++i) {
    to.inputs[i].present = (*present >> i & 1) != 0;
    if (!to.inputs[i].present) continue;
    if (next == frame.arguments.size) return malformed("an argument is missing");
    Status status = view(*frame.arguments.buffers[next++], to.inputs[i]);
    if (!status.ok()) return status;
  }
  return next == frame.arguments.size ? Status() : malformed("an argument is left over");
}

Status read_attributes(const Op& op, const CallFrame& frame, Arguments& to) {
  for (std::size_t i = 0; i < op.signature.attributes.size(); ++i) {
    const AttributeSpec& spec = op.signature.attributes[i];
    to.attributes[i] = default_of(spec);
    if (spec.type == AttributeType::real) {
      const auto value = real_of(frame.attributes, spec.name);
      if (!value) return malformed("there is no floating-point number " + std::string(spec.name));
      to.attributes[i] = *value;
    } else {
      const auto value = integer_of(frame.attributes, spec.name);
      if (!value) return malformed("there is no integer " + std::string(spec.name));
      to.attributes[i] = *value;
    }
  }
  return {};
}

/// Reads the results, and checks that they are what the signature says: the shapes in a compiled
/// program may come from a file.
Status read_outputs(const CallFrame& frame, std::span<const OutputType<std::int64_t>> types,
                    Arguments& to) {
  if (frame.results.size != static_cast<std::int64_t>(types.size())) {
    return malformed("it has another number of results");
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    Status status = view(*frame.results.buffers[i], to.outputs[i]);
    if (!status.ok()) return status;
    if (to.outputs[i].dtype != types[i].dtype ||
        !std::ranges::equal(to.outputs[i].shape, types[i].shape.span())) {
      return malformed("a result has another shape or dtype");
    }
  }
  return {};
}

Status run(const CallFrame& frame, DeviceType device) {
  const auto* const name =
      static_cast<const Text*>(find(frame.attributes, "_op", AttributeKind::text));
  if (name == nullptr) return malformed("there is no text _op");
  const std::string_view called(name->data, name->size);
  const Op* const op = own_module().find(called);
  if (op == nullptr) return malformed("there is no op " + std::string(called));
  Arguments arguments;
  if (Status status = read_inputs(*op, frame, arguments); !status.ok()) return status;
  if (Status status = read_attributes(*op, frame, arguments); !status.ok()) return status;
  const auto inputs =
      std::span<const TensorView>(arguments.inputs).first(op->signature.inputs.size());
  const auto attributes =
      std::span<const Attribute>(arguments.attributes).first(op->signature.attributes.size());
  std::array<OutputType<std::int64_t>, max_outputs> inferred;
  const auto types = std::span(inferred).first(op->signature.outputs.size());
  if (Status status = infer(*op, inputs, attributes, types); !status.ok()) return status;
  if (Status status = read_outputs(frame, types, arguments); !status.ok()) return status;
  const WithSubnormals environment;
  XlaExecution execution(frame, device);
  return cudarelu::run(*op, inputs,
                       std::span<const TensorView>(arguments.outputs).first(types.size()),
                       attributes, execution);
}

/// Answers XLA's question about the handler. Returns whether there was one. The version is the
/// oldest that XLA accepts. No trait: a captured graph would keep the address of workspace.
bool answer(const CallFrame& frame) {
  Extension* const extension = frame.extension_start;
  if (extension == nullptr || extension->type != MetadataExtension::type) return false;
  Metadata& metadata = *reinterpret_cast<MetadataExtension*>(extension)->metadata;
  metadata.api_version.major = 0;
  metadata.api_version.minor = 1;
  metadata.traits = 0;
  return true;
}

Error* handle(const CallFrame& frame, DeviceType device) noexcept {
  if (answer(frame) || frame.stage != Stage::execute) return nullptr;
  Status status;
  try {
    status = run(frame, device);
  } catch (const std::bad_alloc&) {
    status = Status::out_of_memory();
  } catch (const std::exception& error) {  // of own_module()
    status = {Status::Code::internal, error.what()};
  }
  return status.ok() ? nullptr : error_of(*frame.api, status);
}

}  // namespace
}  // namespace cudarelu::xla

extern "C" {

__attribute__((visibility("default"))) cudarelu::xla::Error* cudarelu_xla_cpu(
    cudarelu::xla::CallFrame* frame) {
  return cudarelu::xla::handle(*frame, cudarelu::DeviceType::cpu);
}

__attribute__((visibility("default"))) cudarelu::xla::Error* cudarelu_xla_cuda(
    cudarelu::xla::CallFrame* frame) {
  return cudarelu::xla::handle(*frame, cudarelu::DeviceType::cuda);
}
}

// The reader of op modules for XLA, and so for JAX: a handler of its foreign function interface for
// each platform, which every module exports. One handler serves all ops of its module.
//
// The attributes of a call: "_op", the name of the op; "_present", a bit for each input of the
// signature that has a buffer; and the attributes of the op, where a label is its position, and a
// floating-point number is itself or the integer with the bits of its float64: JAX takes attributes
// that compare equal, such as 0.0 and -0.0, for the same.

#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "cudarelu/cuda_driver.h"
#include "cudarelu/dtype_table.h"
#include "cudarelu/host.h"
#include "graph_memory.h"
#include "xla_ffi.h"

namespace cudarelu::xla {
namespace {

constexpr DTypeTable<Type> element_types{{Type::f32, Type::f64, Type::f16, Type::bf16, Type::s8,
                                          Type::u8, Type::s32, Type::s64, Type::pred}};

/// Calls a function of XLA's API. Returns whether it has succeeded: this version of XLA may lack
/// it.
template <class Arguments>
bool call(const CallFrame& frame, Error* (*Api::*function)(Arguments*), Arguments& arguments) {
  const Api& api = *frame.api;
  const auto* const address = reinterpret_cast<const char*>(&(api.*function));
  const auto* const end = reinterpret_cast<const char*>(&api) + api.struct_size;
  if (address + sizeof(api.*function) > end || api.*function == nullptr) return false;
  if constexpr (requires { arguments.context; }) arguments.context = frame.context;
  Error* const error = (api.*function)(&arguments);
  if (error == nullptr) return true;
  DestroyArguments destruction{.error = error};
  api.destroy_error(&destruction);
  return false;
}

/// XLA's threads for computations on the CPU.
class XlaThreads final : public TaskQueue {
 public:
  explicit XlaThreads(const CallFrame& frame) : frame_(frame) {
    ThreadCountArguments arguments{.count = &count_};
    if (!call(frame, &Api::count_threads, arguments)) count_ = 1;
  }
  int threads() const override { return static_cast<int>(count_); }
  bool schedule(void (*task)(void*), void* state) override {
    ScheduleArguments arguments{.task = task, .data = state};
    return call(frame_, &Api::schedule, arguments);
  }

 private:
  const CallFrame& frame_;
  std::int64_t count_ = 1;
};

/// The CUDA device of this thread, which the driver knows; 0 if it has none.
int current_device() {
  auto* const get = cuda_driver_function<int(int*)>("cuCtxGetDevice");
  int device = 0;
  return get != nullptr && get(&device) == 0 ? device : 0;
}

[[noreturn]] void malformed(const std::string& what) {
  throw Failure(
      {Status::Code::invalid_argument,
       "a call of the module " + std::string(own_module().name) + " by XLA is malformed: " + what});
}

/// The identifier in XLA of the type GraphMemory, for this module.
std::int64_t* type_of_memory(const CallFrame& frame) {
  static std::mutex mutex;
  static std::int64_t id = 0;
  static const TypeInfo info{
      .destroy = [](void* memory) { delete static_cast<GraphMemory*>(memory); }};
  const Version& version = frame.api->version;
  if (version.major == 0 && version.minor < 3) malformed("its handler needs JAX 0.10 or later");
  const std::scoped_lock lock(mutex);
  if (id == 0) {
    const std::string name = "cudarelu." + std::string(own_module().name) + ".memory";
    TypeArguments arguments{.name = {name.data(), name.size()}, .id = &id, .info = &info};
    if (!call(frame, &Api::register_type, arguments)) malformed("XLA does not keep its state");
  }
  return &id;
}

/// XLA makes an instance of each call in a program before it runs.
void instantiate(const CallFrame& frame) {
  auto memory = std::make_unique<GraphMemory>();
  StateArguments arguments{.type = type_of_memory(frame), .state = memory.get()};
  if (!call(frame, &Api::set_state, arguments)) malformed("XLA does not keep its state");
  std::ignore = memory.release();  // it is XLA's
}

GraphMemory& memory_of(const CallFrame& frame) {
  StateArguments arguments{.type = type_of_memory(frame)};
  if (!call(frame, &Api::get_state, arguments)) malformed("it has no instance");
  return *static_cast<GraphMemory*>(arguments.state);
}

class XlaExecution final : public HostExecution {
 public:
  XlaExecution(const CallFrame& frame, DeviceType device, bool capturable)
      : HostExecution(device, index_of_device(frame, device), stream_of(frame, device)),
        frame_(frame),
        threads_(frame),
        capturable_(capturable) {}

  /// The kernels may still run: XLA reuses the memory in the order of the stream.
  ~XlaExecution() override {
    for (FreeArguments& each : borrowed_) call(frame_, &Api::free, each);
  }
  XlaExecution(const XlaExecution&) = delete;
  XlaExecution& operator=(const XlaExecution&) = delete;

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    cudarelu::parallel_for(threads_, n, grain, body);
  }

  void* allocate(std::size_t bytes) override {
    if (device_type == DeviceType::cpu) return HostExecution::allocate(bytes);
    if (capturable_ && is_captured(stream)) {
      return memory_of(frame_).take(device_index, captured_++, bytes);
    }
    try {
      borrowed_.reserve(borrowed_.size() + 1);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    AllocateArguments arguments{.size = bytes, .alignment = 16};  // the largest that XLA accepts
    if (!call(frame_, &Api::allocate, arguments)) return nullptr;
    return borrowed_.emplace_back(FreeArguments{.size = bytes, .data = arguments.data}).data;
  }

 private:
  static void* stream_of(const CallFrame& frame, DeviceType device) {
    StreamArguments arguments;
    const bool on_cuda = device == DeviceType::cuda;
    return on_cuda && call(frame, &Api::get_stream, arguments) ? arguments.stream : nullptr;
  }

  /// XLA makes the device of a call current; not every version tells which one it is.
  static int index_of_device(const CallFrame& frame, DeviceType device) {
    if (device == DeviceType::cpu) return 0;
    DeviceArguments arguments;
    return call(frame, &Api::get_device, arguments) ? arguments.device : current_device();
  }

  const CallFrame& frame_;
  XlaThreads threads_;
  bool capturable_;
  int captured_ = 0;                     // allocations in this call
  std::vector<FreeArguments> borrowed_;  // by XLA
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

std::string_view text_of(const Attributes& attributes, std::string_view name) {
  const void* const found = find(attributes, name, AttributeKind::text);
  if (found == nullptr) malformed("there is no text " + std::string(name));
  const Text& text = *static_cast<const Text*>(found);
  return {text.data, text.size};
}

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::int64_t integer_of(const Attributes& attributes, std::string_view name) {
  if (const void* const found = find(attributes, name, AttributeKind::number)) {
    const Number& number = *static_cast<const Number*>(found);
    if (number.dtype == Type::s32) return read<std::int32_t>(number.value);
    if (number.dtype == Type::s64) return read<std::int64_t>(number.value);
  }
  malformed("there is no integer " + std::string(name));
}

double real_of(const Attributes& attributes, std::string_view name) {
  if (const void* const found = find(attributes, name, AttributeKind::number)) {
    const Number& number = *static_cast<const Number*>(found);
    if (number.dtype == Type::f32) return read<float>(number.value);
    if (number.dtype == Type::f64 || number.dtype == Type::s64) return read<double>(number.value);
  }
  malformed("there is no floating-point number " + std::string(name));
}

TensorView view_of(const Buffer& buffer) {
  const std::optional<DType> dtype = element_types.find(buffer.dtype);
  if (!dtype) malformed("XLA's element type " + std::to_string(static_cast<int>(buffer.dtype)));
  return {buffer.data, *dtype, {buffer.dims, static_cast<std::size_t>(buffer.rank)}};
}

void read_inputs(const CallFrame& frame, HostCall& to) {
  const std::int64_t present = integer_of(frame.attributes, "_present");
  std::int64_t next = 0;
  for (std::size_t i = 0; i < to.inputs.size(); ++i) {
    to.inputs[i].present = (present >> i & 1) != 0;
    if (!to.inputs[i].present) continue;
    if (next == frame.arguments.size) malformed("an argument is missing");
    to.inputs[i] = view_of(*frame.arguments.buffers[next++]);
  }
  if (next != frame.arguments.size) malformed("an argument is left over");
}

void read_attributes(const Attributes& from, HostCall& to) {
  for (std::size_t i = 0; i < to.attributes.size(); ++i) {
    const AttributeSpec& spec = to.op.signature.attributes[i];
    to.attributes[i] = spec.type == AttributeType::real ? Attribute(real_of(from, spec.name))
                                                        : Attribute(integer_of(from, spec.name));
  }
}

void run(const CallFrame& frame, DeviceType device, bool capturable) {
  const std::string_view name = text_of(frame.attributes, "_op");
  const Op* const op = own_module().find(name);
  if (op == nullptr) malformed("there is no op " + std::string(name));
  HostCall call(*op);
  read_inputs(frame, call);
  read_attributes(frame.attributes, call);
  check(call.infer());
  if (frame.results.size != static_cast<std::int64_t>(call.outputs.size())) {
    malformed("it has another number of results");
  }
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i] = view_of(*frame.results.buffers[i]);
  }
  check(call.check_outputs());  // the shapes in a compiled program may come from a file
  XlaExecution execution(frame, device, capturable);
  check(call.run(execution));
}

/// Answers XLA's question about the handler. Returns whether there was one. The version is the
/// oldest that XLA accepts.
bool answer(const CallFrame& frame, bool capturable) {
  Extension* const extension = frame.extension_start;
  if (extension == nullptr || extension->type != MetadataExtension::type) return false;
  Metadata& metadata = *reinterpret_cast<MetadataExtension*>(extension)->metadata;
  metadata.api_version.major = 0;
  metadata.api_version.minor = 1;
  metadata.traits = capturable ? Metadata::can_be_captured : 0;
  return true;
}

Error* handle(const CallFrame& frame, DeviceType device, bool capturable = false) noexcept {
  if (answer(frame, capturable)) return nullptr;
  const Status status = guarded([&] {
    if (frame.stage == Stage::execute) run(frame, device, capturable);
    if (frame.stage == Stage::instantiate && capturable) instantiate(frame);
  });
  if (status.ok()) return nullptr;
  ErrorArguments arguments{.message = status.message().c_str(), .code = absl_code_of(status)};
  return frame.api->create_error(&arguments);
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

/// For two stages, `instantiate` and `execute`. XLA captures its calls into CUDA graphs; each keeps
/// the memory of its workspace as long as its program exists.
__attribute__((visibility("default"))) cudarelu::xla::Error* cudarelu_xla_cuda_capturable(
    cudarelu::xla::CallFrame* frame) {
  return cudarelu::xla::handle(*frame, cudarelu::DeviceType::cuda, true);
}
}

// The reader of op modules for tvm-ffi. Every module exports a function for each of its ops, which
// module.h's table does not contain: generate.sh writes it, and it calls cudarelu_tvm_ffi().
//
// The arguments of a call: the inputs of the signature, None where one is absent; then numbers and
// strings, the attributes in their order; then tensors, the outputs, or none, where the call
// allocates and returns them. Inputs and attributes at the end may be left out if they are
// optional.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cudarelu/dtype_table.h"
#include "cudarelu/host.h"
#include "tvm_ffi.h"

namespace cudarelu::tvm_ffi {
namespace {

using Code = Status::Code;

constexpr std::int32_t cpu = 1, cuda = 2;  // the types of devices

/// Functions of tvm-ffi, null if the program has not loaded it: a module must load without them. A
/// result of type int is 0 unless the function has set an error.
struct Library {
  // Python loads it for itself alone. Null is the whole program, of which it may be a part.
  void* const handle = dlopen("libtvm_ffi.so", RTLD_NOW | RTLD_NOLOAD);

  template <class F>
  void find(const char* name, F*& function) {
    function = reinterpret_cast<F*>(dlsym(handle, name));
  }
  Library() {
    find("TVMFFIEnvGetStream", get_stream);
    find("TVMFFIEnvGetDLPackManagedTensorAllocator", get_allocator);
    find("TVMFFIEnvTensorAlloc", allocate);
    find("TVMFFIErrorSetRaisedFromCStr", raise);
    find("TVMFFIObjectDecRef", release);
    find("TVMFFIFunctionGetGlobal", get_function);
    find("TVMFFIFunctionCall", call);
  }
  /// Whether the library of the arguments allocates tensors.
  bool has_allocator() const { return get_allocator != nullptr && get_allocator() != nullptr; }

  void* (*get_stream)(std::int32_t device_type, std::int32_t device_index);
  void* (*get_allocator)();
  int (*allocate)(Tensor* prototype, Object** tensor);
  void (*raise)(const char* kind, const char* message);
  int (*release)(Object*);
  int (*get_function)(const Text* name, Object** function);
  int (*call)(Object* function, const Any* arguments, std::int32_t count, Any* result);
};

const Library& library() {
  static const Library functions;
  return functions;
}

struct Release {
  void operator()(Object* object) const { library().release(object); }
};
using Owned = std::unique_ptr<Object, Release>;

/// Throws an error that tvm-ffi has set, which the call passes on.
[[noreturn]] void already_set() { throw Failure({Code::internal, ""}); }

[[noreturn]] void value_error(const Op& op, std::string_view name, const std::string& what) {
  fail(Code::invalid_argument, op, std::string(name) + what);
}
[[noreturn]] void type_error(const Op& op, std::string_view name, const std::string& what) {
  fail(Code::unsupported_dtype, op, std::string(name) + what);
}

constexpr DTypeTable<ElementType> element_types{{{{2, 32, 1},
                                                  {2, 64, 1},
                                                  {2, 16, 1},
                                                  {4, 16, 1},
                                                  {0, 8, 1},
                                                  {1, 8, 1},
                                                  {0, 32, 1},
                                                  {0, 64, 1},
                                                  {6, 8, 1}}}};

template <class T>
const T* content_of(const Object* object) {
  return reinterpret_cast<const T*>(object + 1);
}

const Tensor* tensor_of(const Any& any) {
  if (any.type == Type::tensor) return content_of<Tensor>(any.object);
  return any.type == Type::tensor_pointer ? static_cast<const Tensor*>(any.pointer) : nullptr;
}

bool is_dense(const Tensor& tensor, std::span<const std::int64_t> shape) {
  if (tensor.strides == nullptr || std::ranges::find(shape, 0) != shape.end()) return true;
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

/// A call, and what is known of its tensors.
struct Arguments {
  explicit Arguments(const Op& op) : call(op) {}  // an aggregate would be cleared first

  HostCall call;
  Device device{};
  const Parameter* first = nullptr;  // the input that has determined the device
  bool outputs_given = false;
};

TensorView read_tensor(const Parameter& parameter, const Any& from, Arguments& arguments) {
  const Op& op = arguments.call.op;
  const std::string_view name = parameter.name;
  const Tensor* const tensor = tensor_of(from);
  if (tensor == nullptr) type_error(op, name, " must be a tensor");
  const std::optional<DType> dtype = element_types.find(tensor->dtype);
  if (!dtype) {
    type_error(op, name,
               " has an unsupported dtype; supported: " + names_of(dtypes_of(op, parameter)));
  }
  if (arguments.first == nullptr) {
    arguments.first = &parameter;
    arguments.device = tensor->device;
    if (tensor->device.type != cpu && tensor->device.type != cuda) {
      value_error(op, name, " is neither on the CPU nor on CUDA");
    }
  } else if (tensor->device != arguments.device) {
    value_error(op, name, " is not on the same device as " + std::string(arguments.first->name));
  }
  const TensorView view{static_cast<std::byte*>(tensor->data) + tensor->byte_offset,
                        *dtype,
                        {tensor->shape, static_cast<std::size_t>(tensor->rank)}};
  if (!is_dense(*tensor, view.shape)) value_error(op, name, " is not contiguous");
  if (reinterpret_cast<std::uintptr_t>(view.data) % size_of(*dtype) != 0) {
    value_error(op, name, " is not aligned to the size of its elements");
  }
  return view;
}

std::optional<std::string_view> text_of(const Any& any) {
  if (any.type == Type::text_pointer) return any.c_text;
  if (any.type == Type::small_text) return std::string_view(any.small, any.small_size);
  if (any.type != Type::text) return std::nullopt;
  const Text& text = *content_of<Text>(any.object);
  return std::string_view(text.data, text.size);
}

Attribute read_attribute(const Op& op, const AttributeSpec& spec, const Any& from) {
  const std::string_view name = spec.name;
  if (spec.type == AttributeType::label) {
    const std::optional<std::string_view> label = text_of(from);
    if (!label) type_error(op, name, " must be a str");
    Attribute value;
    check(find_label(op, spec, *label, value));
    return value;
  }
  const bool is_real = spec.type == AttributeType::real;
  if (spec.optional && from.type == Type::none) return default_of(spec);
  if (from.type == Type::boolean && spec.type == AttributeType::boolean) return from.integer;
  if (from.type == Type::integer) {
    return is_real ? Attribute(static_cast<double>(from.integer)) : Attribute(from.integer);
  }
  if (from.type == Type::real && is_real) return from.real;
  if (from.type == Type::big_integer) value_error(op, name, " is out of range");
  const std::string article = spec.type == AttributeType::integer ? "an " : "a ";
  type_error(op, name, " must be " + article + python_type(spec.type));
}

void read_arguments(std::span<const Any> given, Arguments& to) {
  HostCall& call = to.call;
  const Signature& signature = call.op.signature;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const Parameter& input = signature.inputs[i];
    call.inputs[i].present = !given.empty() && given[0].type != Type::none;
    if (call.inputs[i].present) {
      call.inputs[i] = read_tensor(input, given[0], to);
    } else if (!input.optional) {
      type_error(call.op, input.name, " is missing");
    }
    if (!given.empty()) given = given.subspan(1);
  }
  for (std::size_t i = 0; i < call.attributes.size(); ++i) {
    const AttributeSpec& spec = signature.attributes[i];
    if (!given.empty() && tensor_of(given[0]) == nullptr) {
      call.attributes[i] = read_attribute(call.op, spec, given[0]);
      given = given.subspan(1);
    } else if (spec.required) {
      type_error(call.op, spec.name, " is missing");
    } else {
      call.attributes[i] = default_of(spec);
    }
  }
  to.outputs_given = !given.empty();
  if (to.outputs_given && given.size() != call.outputs.size()) {
    type_error(call.op, std::to_string(given.size()),
               " outputs are given, but it has " + std::to_string(call.outputs.size()));
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    call.outputs[i] = read_tensor(signature.outputs[i], given[i], to);
  }
}

bool overlap(const TensorView& a, const TensorView& b) {
  const auto begin = [](const TensorView& x) { return static_cast<const std::byte*>(x.data); };
  const auto bytes = [](const TensorView& x) { return x.size() * std::int64_t(size_of(x.dtype)); };
  return a.size() * b.size() != 0 && begin(a) < begin(b) + bytes(b) &&
         begin(b) < begin(a) + bytes(a);
}

/// Rejects an output that shares memory with another tensor, unless the kernel may overwrite it.
void check_overlap(const HostCall& call, std::size_t output) {
  const Op& op = call.op;
  const TensorView& written = call.outputs[output];
  const auto reject = [&](std::string_view other) {
    value_error(op, op.signature.outputs[output].name, " overlaps " + std::string(other));
  };
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const TensorView& input = call.inputs[i];
    const bool in_place =
        op.in_place_input == static_cast<int>(i) && op.in_place_output == static_cast<int>(output);
    if (!input.present || !overlap(input, written)) continue;
    if ((op.elementwise || in_place) && input.data == written.data) continue;
    reject(op.signature.inputs[i].name);
  }
  for (std::size_t i = 0; i < output; ++i) {
    if (overlap(call.outputs[i], written)) reject(op.signature.outputs[i].name);
  }
}

[[noreturn]] void unavailable(const Op& op, const std::string& remedy) {
  fail(Code::unavailable, op,
       "the array library of the arguments cannot allocate tensors: " + remedy);
}

/// Allocates a tensor by the library of the arguments. Returns null if there is none, or if it has
/// failed and has set the error. Its library uses the memory again only for work of the same
/// stream.
Owned allocate(Device device, DType dtype, std::span<const std::int64_t> shape) {
  Tensor prototype{};
  prototype.device = device;
  prototype.rank = static_cast<std::int32_t>(shape.size());
  prototype.dtype = element_types[dtype];
  prototype.shape = const_cast<std::int64_t*>(shape.data());
  Object* object = nullptr;
  const bool done = library().allocate != nullptr && library().allocate(&prototype, &object) == 0;
  return Owned(done ? object : nullptr);
}

class TvmExecution final : public HostExecution {
 public:
  explicit TvmExecution(Device device)
      : HostExecution(device.type == cuda ? DeviceType::cuda : DeviceType::cpu, device.index,
                      stream_of(device)),
        device_(device) {}

  void* allocate(std::size_t bytes) override {
    if (device_type == DeviceType::cpu) return HostExecution::allocate(bytes);
    const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(bytes)};
    try {
      workspace_.push_back(tvm_ffi::allocate(device_, DType::uint8, shape));
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    return workspace_.back() == nullptr ? nullptr
                                        : content_of<Tensor>(workspace_.back().get())->data;
  }

 private:
  static void* stream_of(Device device) {
    if (device.type != cuda || library().get_stream == nullptr) return nullptr;
    return library().get_stream(device.type, device.index);
  }

  const Device device_;
  std::vector<Owned> workspace_;
};

/// The result of a call that has allocated its outputs: a tensor, or an Array of tensors.
void return_outputs(std::span<Owned> outputs, Any& result) {
  if (outputs.size() == 1) {
    result = {.type = Type::tensor, .small_size = 0, .object = outputs[0].release()};
    return;
  }
  static Object* const make_array = [] {
    constexpr std::string_view name = "ffi.Array";
    const Text text{name.data(), name.size()};
    Object* function = nullptr;
    return library().get_function(&text, &function) == 0 ? function : nullptr;
  }();
  if (make_array == nullptr) {
    throw Failure({Code::internal, "this version of tvm-ffi has no ffi.Array"});
  }
  std::array<Any, max_outputs> views{};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    views[i] = {.type = Type::tensor, .small_size = 0, .object = outputs[i].get()};
  }
  const auto count = static_cast<std::int32_t>(outputs.size());
  if (library().call(make_array, views.data(), count, &result) != 0) already_set();
}

void run(const Op& op, std::span<const Any> given, Any& result) {
  Arguments arguments(op);
  HostCall& call = arguments.call;
  read_arguments(given, arguments);
  check(call.infer());
  if (arguments.outputs_given) {
    check(call.check_outputs());
    for (std::size_t i = 0; i < call.outputs.size(); ++i) check_overlap(call, i);
  } else if (!library().has_allocator()) {
    unavailable(op, "pass the outputs as arguments");
  }
  std::array<Owned, max_outputs> allocated;
  for (std::size_t i = 0; i < call.outputs.size() && !arguments.outputs_given; ++i) {
    allocated[i] = allocate(arguments.device, call.types[i].dtype, call.types[i].shape.span());
    if (allocated[i] == nullptr) already_set();
    const Any any{.type = Type::tensor, .small_size = 0, .object = allocated[i].get()};
    call.outputs[i] = read_tensor(op.signature.outputs[i], any, arguments);
  }

  TvmExecution execution(arguments.device);
  Status status = call.run(execution);
  if (status.code() == Code::out_of_memory && arguments.device.type == cuda &&
      !library().has_allocator()) {
    unavailable(op, "pass PyTorch tensors, since the op needs workspace");
  }
  check(std::move(status));
  if (!arguments.outputs_given) {
    return_outputs(std::span(allocated).first(call.outputs.size()), result);
  }
}

const char* kind_of(Code code) {
  if (code == Code::invalid_argument) return "ValueError";
  return code == Code::unsupported_dtype ? "TypeError" : "RuntimeError";
}

}  // namespace
}  // namespace cudarelu::tvm_ffi

extern "C" int cudarelu_tvm_ffi(const char* name, const void* arguments, std::int32_t count,
                                void* result) {
  using namespace cudarelu;
  const Status status = guarded([&] {
    const Op& op = *own_module().find(name);
    const std::span given(static_cast<const tvm_ffi::Any*>(arguments),
                          static_cast<std::size_t>(count));
    tvm_ffi::run(op, given, *static_cast<tvm_ffi::Any*>(result));
  });
  if (status.ok()) return 0;
  if (!status.message().empty() && tvm_ffi::library().raise != nullptr) {
    tvm_ffi::library().raise(tvm_ffi::kind_of(status.code()), status.message().c_str());
  }
  return -1;
}

// The reader of op modules for TensorFlow on the CPU: tf.load_op_library() loads this library,
// whose constructor registers an op and a kernel for each op of one module. It is the first one
// that the file <this library>.module names; the others on its lines lend their engines. Without
// the file, it is libcudarelu_ops.so beside this library.
//
// The op "My>Swish" has the inputs, the attributes and the outputs of the signature. An optional
// input is a list of at most one tensor, and a label is a text.

#include <dlfcn.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cudarelu/host.h"
#include "cudarelu/infer.h"
#include "cudarelu/op.h"
#include "tensorflow_api.h"

namespace cudarelu {
namespace tf {
namespace {

/// A size that shape inference may not know.
struct Size {
  Size() = default;
  explicit Size(std::int64_t value) : value(value) {}
  std::int64_t value = -1;  // -1: unknown
};

}  // namespace
}  // namespace tf

template <>
struct DimTraits<tf::Size> {
  static bool differ(const tf::Size& a, const tf::Size& b) {
    return a.value >= 0 && b.value >= 0 && a.value != b.value;
  }
  static bool is_one(const tf::Size& a) { return a.value == 1; }
  static bool is_multiple(const tf::Size& a, const tf::Size& of) {
    return a.value < 0 || of.value < 0 || DimTraits<std::int64_t>::is_multiple(a.value, of.value);
  }
  static bool exceeds(const tf::Size& size, std::int64_t limit) { return size.value > limit; }
  static std::string text(const tf::Size& size) {
    return size.value < 0 ? "?" : std::to_string(size.value);
  }
};

namespace tf {
namespace {

const Api& api() {
  static const Api functions;
  return functions;
}

// Names and types

struct TypeName {
  Type type;
  const char* name;
};

/// In the order of DType.
constexpr std::array<TypeName, all_dtypes.size()> types{{{Type::float32, "float"},
                                                         {Type::float64, "double"},
                                                         {Type::float16, "half"},
                                                         {Type::bfloat16, "bfloat16"},
                                                         {Type::int8, "int8"},
                                                         {Type::uint8, "uint8"},
                                                         {Type::int32, "int32"},
                                                         {Type::int64, "int64"},
                                                         {Type::boolean, "bool"}}};

const TypeName& type_of(DType dtype) { return types[static_cast<std::size_t>(dtype)]; }

std::optional<DType> dtype_of(Type type) {
  for (const DType dtype : all_dtypes) {
    if (type_of(dtype).type == type) return dtype;
  }
  return std::nullopt;
}

/// "My>Swish" for the op swish of the module my.
std::string name_of(const Op& op) {
  std::string module(op.module->name);
  module.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(module.front())));
  return module + ">" + op.onnx_type;
}

/// The attribute that has the length of the list of an optional input.
std::string count_of(const Parameter& input) { return "n_" + std::string(input.name); }

/// The attribute that has the dtype of a tensor: T, or that of an input that may be bool too.
std::string type_attribute_of(const Parameter& tensor) {
  const bool own = tensor.kind == ElementKind::variable_or_bool;
  return own ? "T_" + std::string(tensor.name) : "T";
}

// Statuses

struct DeleteStatus {
  void operator()(tf::Status* status) const { api().delete_status(status); }
};
using StatusHandle = std::unique_ptr<tf::Status, DeleteStatus>;

StatusHandle new_status() { return StatusHandle(api().new_status()); }

/// The result of a function of the API.
cudarelu::Status result_of(const StatusHandle& status) {
  if (api().code_of(status.get()) == Code::ok) return {};
  return {cudarelu::Status::Code::internal, api().message_of(status.get())};
}

void set(tf::Status* to, const cudarelu::Status& from) {
  using From = cudarelu::Status::Code;
  const char* const message = from.message().c_str();
  switch (from.code()) {
    case From::invalid_argument:
    case From::unsupported_dtype:
      return api().set_status(to, Code::invalid_argument, message);
    case From::unavailable:
      return api().set_status(to, Code::unimplemented, message);
    case From::out_of_memory:
      return api().set_status(to, Code::resource_exhausted, message);
    default:
      return api().set_status(to, Code::internal, message);
  }
}

/// The status that a function returns, or of the exception that it throws.
template <class F>
cudarelu::Status guarded(const F& function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return cudarelu::Status::out_of_memory();
  } catch (const std::exception& error) {
    return {cudarelu::Status::Code::internal, error.what()};
  }
}

// Shapes

struct ShapeDeleter {
  void operator()(ShapeHandle* handle) const { api().delete_shape(handle); }
};
using ShapeOwner = std::unique_ptr<ShapeHandle, ShapeDeleter>;

struct DimensionDeleter {
  void operator()(DimensionHandle* handle) const { api().delete_dimension(handle); }
};

/// An input in shape inference.
struct TensorType {
  bool present = false;
  DType dtype{};
  std::vector<Size> shape;
};

/// The shape of an input, or nothing if its rank is unknown.
std::optional<std::vector<Size>> read_shape(ShapeContext* context, int input) {
  const ShapeOwner shape(api().new_shape());
  const StatusHandle status = new_status();
  api().input_shape(context, input, shape.get(), status.get());
  if (!result_of(status).ok() || api().rank_known(context, shape.get()) == 0) return std::nullopt;
  const std::unique_ptr<DimensionHandle, DimensionDeleter> dimension(api().new_dimension());
  std::vector<Size> sizes(static_cast<std::size_t>(api().rank_of(context, shape.get())));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    api().dimension_of(context, shape.get(), static_cast<std::int64_t>(i), dimension.get());
    if (api().value_known(dimension.get()) != 0) sizes[i] = Size(api().value_of(dimension.get()));
  }
  return sizes;
}

cudarelu::Status write_shape(ShapeContext* context, int output, std::span<const Size> sizes) {
  const StatusHandle status = new_status();
  ShapeOwner shape(api().scalar(context));
  for (const Size& size : sizes) {
    // The API has no other function for a new dimension; -1 is an unknown one.
    const ShapeOwner last(api().vector(context, static_cast<std::size_t>(size.value)));
    ShapeOwner longer(api().new_shape());
    api().concatenate(context, shape.get(), last.get(), longer.get(), status.get());
    if (cudarelu::Status result = result_of(status); !result.ok()) return result;
    shape = std::move(longer);
  }
  api().set_output_shape(context, output, shape.get(), status.get());
  return result_of(status);
}

/// The inputs of a call, or nothing if the rank of one is unknown. TensorFlow tells how many there
/// are: if some optional inputs are given but not all, the sizes of all of them are unknown.
std::optional<std::vector<TensorType>> read_inputs(const Op& op, ShapeContext* context) {
  const auto& declared = op.signature.inputs;
  const auto given = static_cast<std::size_t>(api().shape_inputs(context));
  std::size_t required = 0;
  while (required < declared.size() && !declared[required].optional) ++required;
  DType variable{};  // TensorFlow checks the dtypes
  for (const DType dtype : all_dtypes) {
    if (op.spec.dtypes.contains(dtype)) variable = dtype;
  }
  std::vector<TensorType> inputs(declared.size());
  for (std::size_t i = 0; i < declared.size(); ++i) {
    TensorType& input = inputs[i];
    input.dtype = declared[i].dtype(variable);
    if (i < required || given == declared.size()) {
      auto shape = read_shape(context, static_cast<int>(i));
      if (!shape) return std::nullopt;
      input.shape = *std::move(shape);
      input.present = true;
    } else if (given > required && declared[i].stand_in() >= 0) {
      input.shape.resize(inputs[op.signature.source_of(i, false)].shape.size());
      input.present = true;
    }
  }
  return inputs;
}

cudarelu::Status infer_shapes(const Op& op, ShapeContext* context) {
  const auto inputs = read_inputs(op, context);
  if (!inputs) {
    const StatusHandle status = new_status();
    api().set_unknown_shapes(context, status.get());
    return result_of(status);
  }
  // The API does not tell attributes: a size that one has is unknown.
  const std::vector<Attribute> attributes(op.signature.attributes.size(), std::int64_t{-1});
  std::array<OutputType<Size>, max_outputs> outputs;
  const auto used = std::span(outputs).first(op.signature.outputs.size());
  cudarelu::Status status =
      infer_tensors(op, std::span<const TensorType>(*inputs), attributes, used);
  for (std::size_t i = 0; status.ok() && i < used.size(); ++i) {
    status = write_shape(context, static_cast<int>(i), used[i].shape.span());
  }
  return status;
}

// Kernels

/// A node of a graph.
struct Node {
  const Op& op;
  std::array<Attribute, max_attributes> attributes;
  std::array<bool, max_inputs> present{};
};

cudarelu::Status read_attribute(Construction* from, const AttributeSpec& spec, Attribute& to) {
  const std::string name(spec.name);
  const StatusHandle status = new_status();
  switch (spec.type) {
    case AttributeType::real: {
      float value = 0;
      api().get_real(from, name.c_str(), &value, status.get());
      to = static_cast<double>(value);
      break;
    }
    case AttributeType::boolean:
    case AttributeType::integer: {
      std::int64_t value = 0;
      api().get_integer(from, name.c_str(), &value, status.get());
      to = value;
      break;
    }
    case AttributeType::label: {
      std::array<char, 256> text{};
      api().get_text(from, name.c_str(), text.data(), text.size() - 1, status.get());
      const auto label = std::ranges::find(spec.labels, std::string_view(text.data()));
      to = static_cast<std::int64_t>(label - spec.labels.begin());  // TensorFlow checks the text
    }
  }
  return result_of(status);
}

cudarelu::Status read_node(Construction* from, Node& to) {
  const Signature& signature = to.op.signature;
  for (std::size_t i = 0; i < signature.attributes.size(); ++i) {
    cudarelu::Status status = read_attribute(from, signature.attributes[i], to.attributes[i]);
    if (!status.ok()) return status;
  }
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    std::int64_t count = 1;
    if (signature.inputs[i].optional) {
      const StatusHandle status = new_status();
      api().get_integer(from, count_of(signature.inputs[i]).c_str(), &count, status.get());
      if (cudarelu::Status result = result_of(status); !result.ok()) return result;
    }
    if (count > 1) {
      return {cudarelu::Status::Code::invalid_argument,
              std::string(to.op.name) + ": " + std::string(signature.inputs[i].name) +
                  " must be a list of at most one tensor, not of " + std::to_string(count)};
    }
    to.present[i] = count == 1;
  }
  return check_attributes(to.op, std::span(to.attributes).first(signature.attributes.size()));
}

void* create(const Op& op, Construction* construction) noexcept {
  std::unique_ptr<Node> node;
  const cudarelu::Status status = guarded([&] {
    node = std::make_unique<Node>(Node{.op = op, .attributes = {}});
    return read_node(construction, *node);
  });
  if (status.ok()) return node.release();
  const StatusHandle to = new_status();
  set(to.get(), status);
  api().fail_construction(construction, to.get());
  return nullptr;
}

/// A tensor of a call.
class TensorOwner {
 public:
  TensorOwner() = default;
  TensorOwner(const TensorOwner&) = delete;
  TensorOwner& operator=(const TensorOwner&) = delete;
  ~TensorOwner() { reset(); }
  void reset(Tensor* tensor = nullptr) {
    if (tensor_ != nullptr) api().delete_tensor(tensor_);
    tensor_ = tensor;
  }
  Tensor* get() const { return tensor_; }

 private:
  Tensor* tensor_ = nullptr;
};

/// One call of a kernel.
class Run {
 public:
  Run(const Node& node, Context* context) : op_(node.op), node_(node), context_(context) {}

  cudarelu::Status operator()() {
    const Signature& signature = op_.signature;
    const auto inputs = std::span<const TensorView>(inputs_).first(signature.inputs.size());
    const auto outputs = std::span<const TensorView>(outputs_).first(signature.outputs.size());
    const auto attributes =
        std::span<const Attribute>(node_.attributes).first(signature.attributes.size());
    const auto types = std::span(types_).first(signature.outputs.size());
    int position = 0;  // of an input among TensorFlow's
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs_[i].present = node_.present[i];
      if (!node_.present[i]) continue;
      positions_[i] = position++;
      if (cudarelu::Status status = read_input(i); !status.ok()) return status;
    }
    cudarelu::Status status = infer_tensors(op_, inputs, attributes, types);
    for (std::size_t i = 0; status.ok() && i < types.size(); ++i) status = allocate(i);
    if (!status.ok()) return status;
    const WithSubnormals environment;  // TensorFlow replaces them by 0 in its threads
    HostExecution execution(DeviceType::cpu, 0, nullptr);
    return cudarelu::run(op_, inputs, outputs, attributes, execution);
  }

 private:
  cudarelu::Status read_input(std::size_t i) {
    const StatusHandle status = new_status();
    Tensor* tensor = nullptr;
    api().get_input(context_, positions_[i], &tensor, status.get());
    if (cudarelu::Status result = result_of(status); !result.ok()) return result;
    input_owners_[i].reset(tensor);
    const auto dtype = dtype_of(api().type_of(tensor));
    const int rank = api().dimensions(tensor);
    if (!dtype || rank > static_cast<int>(max_rank)) {
      return {cudarelu::Status::Code::invalid_argument,
              std::string(op_.name) + ": " + std::string(op_.signature.inputs[i].name) +
                  " has a dtype or a number of dimensions that is not supported"};
    }
    auto& shape = shapes_[i];
    for (int d = 0; d < rank; ++d) shape[static_cast<std::size_t>(d)] = api().size_of(tensor, d);
    inputs_[i] = {.data = api().data_of(tensor),
                  .dtype = *dtype,
                  .shape = {shape.data(), static_cast<std::size_t>(rank)}};
    return {};
  }

  cudarelu::Status allocate(std::size_t i) {
    const auto shape = types_[i].shape.span();
    const DType dtype = types_[i].dtype;
    outputs_[i] = {.data = nullptr, .dtype = dtype, .shape = shape};
    const auto bytes = static_cast<std::size_t>(outputs_[i].size()) * size_of(dtype);
    const auto rank = static_cast<int>(shape.size());
    const auto output = static_cast<int>(i);
    const StatusHandle status = new_status();
    if (output == op_.in_place_output && bytes > 0) {
      // TensorFlow lends the memory of an input that nothing else refers to.
      const auto input = static_cast<std::size_t>(op_.in_place_input);
      int forwarded = -1;
      input_owners_[input].reset();
      output_owners_[i].reset(api().forward_or_allocate(
          context_, &positions_[input], 1, output, shape.data(), rank, &forwarded, status.get()));
      if (cudarelu::Status result = result_of(status); !result.ok()) return result;
      outputs_[i].data = api().data_of(output_owners_[i].get());
      if (forwarded < 0) return read_input(input);
      inputs_[input].data = outputs_[i].data;
      return {};
    }
    output_owners_[i].reset(api().allocate_output(context_, output, type_of(dtype).type,
                                                  shape.data(), rank, bytes, status.get()));
    if (cudarelu::Status result = result_of(status); !result.ok()) return result;
    outputs_[i].data = api().data_of(output_owners_[i].get());
    return {};
  }

  const Op& op_;
  const Node& node_;
  Context* const context_;
  std::array<int, max_inputs> positions_{};
  std::array<TensorOwner, max_inputs> input_owners_;
  std::array<TensorOwner, max_outputs> output_owners_;
  std::array<std::array<std::int64_t, max_rank>, max_inputs> shapes_;
  std::array<OutputType<std::int64_t>, max_outputs> types_;
  std::array<TensorView, max_inputs> inputs_;
  std::array<TensorView, max_outputs> outputs_;
};

void compute(void* node, Context* context) noexcept {
  const cudarelu::Status status =
      guarded([&] { return Run(*static_cast<const Node*>(node), context)(); });
  if (status.ok()) return;
  const StatusHandle to = new_status();
  set(to.get(), status);
  api().fail_call(context, to.get());
}

void destroy(void* node) noexcept { delete static_cast<Node*>(node); }

// Registration. TensorFlow calls functions without user data, so each op has its own.

constexpr std::size_t max_ops = 512;
std::array<const Op*, max_ops> registered{};

template <std::size_t i>
void* create_of(Construction* construction) {
  return create(*registered[i], construction);
}

template <std::size_t i>
void infer_of(ShapeContext* context, tf::Status* to) {
  const cudarelu::Status status = guarded([&] { return infer_shapes(*registered[i], context); });
  if (!status.ok()) set(to, status);
}

struct Callbacks {
  void* (*create)(Construction*);
  void (*infer)(ShapeContext*, tf::Status*);
};

template <std::size_t... i>
constexpr std::array<Callbacks, max_ops> make_callbacks(std::index_sequence<i...> /*positions*/) {
  return {{{create_of<i>, infer_of<i>}...}};
}
constexpr std::array<Callbacks, max_ops> callbacks =
    make_callbacks(std::make_index_sequence<max_ops>());

/// A number in the text format of protocol buffers.
std::string text_of(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

/// "eps: float = 1e-5"
std::string declaration_of(const AttributeSpec& spec) {
  std::string text(spec.name);
  const auto position = static_cast<std::size_t>(spec.default_value);
  switch (spec.type) {
    case AttributeType::real:
      if (spec.optional) return text + ": float = nan";
      return text + ": float" + (spec.required ? "" : " = " + text_of(spec.default_value));
    case AttributeType::boolean:
    case AttributeType::integer:
      return text + ": int" + (spec.required ? "" : " = " + text_of(spec.default_value));
    case AttributeType::label:
      break;
  }
  text += ": {";
  for (const std::string_view label : spec.labels) {
    text += (label == spec.labels[0] ? "'" : ", '") + std::string(label) + "'";
  }
  text += '}';
  return spec.required ? text : text + " = '" + std::string(spec.labels[position]) + "'";
}

std::string declaration_of(const Parameter& tensor) {
  return std::string(tensor.name) + ": " +
         (tensor.optional ? count_of(tensor) + " * " : std::string()) +
         (tensor.is_generic() ? type_attribute_of(tensor) : type_of(tensor.dtype({})).name);
}

/// Adds the attributes that have the dtypes of the inputs. A default is for calls without a tensor
/// that has it.
void add_type_attributes(OpBuilder* builder, const Op& op) {
  std::vector<std::string> added;
  for (const Parameter& input : op.signature.inputs) {
    const std::string name = type_attribute_of(input);
    if (!input.is_generic() || std::ranges::find(added, name) != added.end()) continue;
    added.push_back(name);
    const bool required = std::ranges::any_of(op.signature.inputs, [&](const Parameter& other) {
      return other.is_generic() && !other.optional && type_attribute_of(other) == name;
    });
    std::string text;
    std::string last;
    for (const DType dtype : all_dtypes) {
      if (!dtypes_of(op, input).contains(dtype)) continue;
      last = type_of(dtype).name;
      text += text.empty() ? name + ": {" : ", ";
      text += last;
    }
    std::ranges::transform(last, last.begin(), [](unsigned char c) { return std::toupper(c); });
    text += required ? "}" : "} = DT_" + last;
    api().add_attribute(builder, text.c_str());
  }
}

void register_op(const Op& op, const Callbacks& functions) {
  const std::string name = name_of(op);
  OpBuilder* const builder = api().new_op(name.c_str());
  add_type_attributes(builder, op);
  for (const Parameter& input : op.signature.inputs) {
    if (input.optional) {
      api().add_attribute(builder, (count_of(input) + ": int >= 0").c_str());
    }
    api().add_input(builder, declaration_of(input).c_str());
  }
  for (const AttributeSpec& spec : op.signature.attributes) {
    api().add_attribute(builder, declaration_of(spec).c_str());
  }
  for (const Parameter& output : op.signature.outputs) {
    api().add_output(builder, declaration_of(output).c_str());
  }
  api().set_shape_function(builder, functions.infer);
  const StatusHandle status = new_status();
  api().register_op(builder, status.get());
  if (const auto result = result_of(status); !result.ok()) {
    throw std::runtime_error(name + ": " + result.message());
  }
  KernelBuilder* const kernel =
      api().new_kernel(name.c_str(), "CPU", functions.create, compute, destroy);
  api().register_kernel(name.c_str(), kernel, status.get());
  if (const auto result = result_of(status); !result.ok()) {
    throw std::runtime_error(name + ": " + result.message());
  }
}

/// The modules of this library, at least one: the first one's ops are registered.
std::vector<std::filesystem::path> module_paths() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&module_paths), &self) == 0) {
    throw std::runtime_error("the dynamic linker does not know the path of this library");
  }
  const std::filesystem::path own(self.dli_fname);
  std::vector<std::filesystem::path> paths;
  std::ifstream file(own.string() + ".module");
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) paths.emplace_back(line);
  }
  if (paths.empty()) paths.push_back(own.parent_path() / "libcudarelu_ops.so");
  return paths;
}

void register_ops() {
  const std::vector<std::filesystem::path> paths = module_paths();
  auto opened = open_module(paths.front());
  const Module& module = add_module(std::move(opened));
  for (const auto& other : std::span(paths).subspan(1)) add_module(open_module(other));
  std::size_t count = 0;
  for (const Op& op : module.ops) {
    if (op.cpu == nullptr) continue;
    if (count == max_ops) {
      throw std::runtime_error("at most " + std::to_string(max_ops) + " ops of " +
                               module.path.string() + " can be registered");
    }
    registered[count] = &op;
    register_op(op, callbacks[count]);
    ++count;
  }
}

/// Runs when the library is loaded; does nothing in a process without TensorFlow.
__attribute__((constructor)) void start() noexcept {
  if (library() == nullptr) return;
  const cudarelu::Status status = guarded([] {
    register_ops();
    return cudarelu::Status();
  });
  if (!status.ok()) std::fprintf(stderr, "cudarelu: %s\n", status.message().c_str());
}

}  // namespace
}  // namespace tf
}  // namespace cudarelu

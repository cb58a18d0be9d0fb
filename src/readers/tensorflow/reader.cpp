// The reader of op modules for TensorFlow on the CPU: tf.load_op_library() loads this library,
// whose constructor registers an op and a kernel for each op of one module. It is the first one
// that the file <this library>.module names; the others on its lines lend their engines. Without
// the file, it is libcudarelu_ops.so beside this library.
//
// The op "My>Swish" has the inputs, the attributes and the outputs of the signature. An optional
// input is a list of at most one tensor, and a label is a text.

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cudarelu/dtype_table.h"
#include "cudarelu/host.h"
#include "tensorflow_api.h"

namespace cudarelu::tf {
namespace {

const Api& api() {
  static const Api functions;
  return functions;
}

/// Deletes an object of TensorFlow by a function of the API.
template <auto function>
struct Delete {
  template <class T>
  void operator()(T* object) const {
    (api().*function)(object);
  }
};
using StatusOwner = std::unique_ptr<tf::Status, Delete<&Api::delete_status>>;
using ShapeOwner = std::unique_ptr<ShapeHandle, Delete<&Api::delete_shape>>;
using DimensionOwner = std::unique_ptr<DimensionHandle, Delete<&Api::delete_dimension>>;
using TensorOwner = std::unique_ptr<Tensor, Delete<&Api::delete_tensor>>;

/// Calls a function of the API whose last argument is a status, and returns its result. Throws a
/// Failure if the function has failed.
template <class F, class... Arguments>
auto call(const Function<F>& function, Arguments... arguments) {
  const StatusOwner status(api().new_status());
  const auto check_status = [&] {
    if (api().code_of(status.get()) == 0) return;
    throw Failure({cudarelu::Status::Code::internal, api().message_of(status.get())});
  };
  if constexpr (std::is_void_v<decltype(function(arguments..., status.get()))>) {
    function(arguments..., status.get());
    check_status();
  } else {
    const auto result = function(arguments..., status.get());
    check_status();
    return result;
  }
}

void set(tf::Status* to, const cudarelu::Status& error) {
  api().set_status(to, absl_code_of(error), error.message().c_str());
}

/// Passes an error to an object, by a function of the API.
template <class T>
void report(const Function<void(T*, tf::Status*)>& function, T* to, const cudarelu::Status& error) {
  const StatusOwner status(api().new_status());
  set(status.get(), error);
  function(to, status.get());
}

// Names and types

constexpr DTypeTable<Type> types{{Type::float32, Type::float64, Type::float16, Type::bfloat16,
                                  Type::int8, Type::uint8, Type::int32, Type::int64,
                                  Type::boolean}};
constexpr DTypeTable<const char*> type_names{
    {"float", "double", "half", "bfloat16", "int8", "uint8", "int32", "int64", "bool"}};

/// "My>Swish" for the op swish of the module my.
std::string name_of(const Op& op) {
  std::string module(op.module->name);
  module.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(module.front())));
  return module + ">" + op.onnx_type;
}

/// The attribute that has the length of the list of an optional input.
std::string count_of(const Parameter& input) { return "n_" + std::string(input.name); }

/// The attribute that has the dtype of a tensor: a type variable, that of an input which may have
/// several, or one that chooses the dtype of an output; "" for a tensor of one dtype.
std::string type_attribute_of(const Signature& signature, const Parameter& tensor) {
  const ElementType& type = tensor.type;
  if (type.is_single()) return "";
  if (type.kind == ElementType::Kind::attribute) {
    return std::string(signature.attributes[type.index].name);
  }
  if (type.kind == ElementType::Kind::input) {
    return type_attribute_of(signature, signature.inputs[type.index]);
  }
  return type.is_union() ? "T_" + std::string(tensor.name)
                         : std::string(type_variable_name(type.index));
}

/// The dtypes as values of a type attribute: "T: {float, half}", and with a default.
std::string declaration_of(const std::string& name, DTypeSet dtypes,
                           std::optional<DType> default_dtype) {
  std::string text;
  for (const DType dtype : all_dtypes) {
    if (!dtypes.contains(dtype)) continue;
    text += (text.empty() ? name + ": {" : ", ") + std::string(type_names[dtype]);
  }
  text += '}';
  if (!default_dtype) return text;
  std::string last = type_names[*default_dtype];
  std::ranges::transform(last, last.begin(), [](unsigned char c) { return std::toupper(c); });
  return text + " = DT_" + last;
}

// Shapes

/// The shape of an input, or nothing if its rank is unknown.
std::optional<std::vector<SymbolicSize>> read_shape(ShapeContext* context, int input) {
  const ShapeOwner shape(api().new_shape());
  call(api().input_shape, context, input, shape.get());
  if (api().rank_known(context, shape.get()) == 0) return std::nullopt;
  const DimensionOwner dimension(api().new_dimension());
  std::vector<SymbolicSize> sizes(static_cast<std::size_t>(api().rank_of(context, shape.get())));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    api().dimension_of(context, shape.get(), static_cast<std::int64_t>(i), dimension.get());
    if (api().value_known(dimension.get()) != 0) {
      sizes[i] = SymbolicSize(api().value_of(dimension.get()));
    }
  }
  return sizes;
}

void write_shape(ShapeContext* context, int output, std::span<const SymbolicSize> sizes) {
  ShapeOwner shape(api().scalar(context));
  for (const SymbolicSize& size : sizes) {
    // The API has no other function for a new dimension; -1 is an unknown one.
    const ShapeOwner last(api().vector(context, static_cast<std::size_t>(size.number)));
    ShapeOwner longer(api().new_shape());
    call(api().concatenate, context, shape.get(), last.get(), longer.get());
    shape = std::move(longer);
  }
  call(api().set_output_shape, context, output, shape.get());
}

/// The inputs of a call, or nothing if the rank of one is unknown. TensorFlow tells how many there
/// are: if some optional inputs are given but not all, the sizes of all of them are unknown.
std::optional<std::vector<SymbolicTensor>> read_inputs(const Op& op, ShapeContext* context) {
  const auto& declared = op.signature.inputs;
  const auto given = static_cast<std::size_t>(api().shape_inputs(context));
  std::size_t required = 0;
  while (required < declared.size() && !declared[required].optional) ++required;
  std::vector<SymbolicTensor> inputs(declared.size());
  for (std::size_t i = 0; i < declared.size(); ++i) {
    SymbolicTensor& input = inputs[i];
    // TensorFlow has checked the dtypes; the first ones of all inputs fit together.
    input.dtype = dtypes_of(op, declared[i]).first();
    if (i < required || given == declared.size()) {
      auto shape = read_shape(context, static_cast<int>(i));
      if (!shape) return std::nullopt;
      input.shape = *std::move(shape);
      input.present = true;
    } else if (given > required && declared[i].default_input() >= 0) {
      input.shape.resize(inputs[op.signature.source_of(i, false)].shape.size());
      input.present = true;
    }
  }
  return inputs;
}

void infer_shapes(const Op& op, ShapeContext* context) {
  const auto inputs = read_inputs(op, context);
  if (!inputs) return call(api().set_unknown_shapes, context);
  // The API does not tell attributes: a size that one has is unknown.
  const std::vector<Attribute> attributes(op.signature.attributes.size(), unknown_integer);
  std::array<OutputType<SymbolicSize>, max_outputs> outputs;
  const auto used = std::span(outputs).first(op.signature.outputs.size());
  check(infer_tensors(op, std::span<const SymbolicTensor>(*inputs), attributes, used));
  for (std::size_t i = 0; i < used.size(); ++i) {
    write_shape(context, static_cast<int>(i), used[i].shape.span());
  }
}

void infer(const Op& op, ShapeContext* context, tf::Status* to) noexcept {
  const cudarelu::Status status = guarded([&] { infer_shapes(op, context); });
  if (!status.ok()) set(to, status);
}

// Kernels

/// A node of a graph.
struct Node {
  const Op& op;
  std::array<Attribute, max_attributes> attributes;
  std::array<bool, max_inputs> present{};
};

std::int64_t read_integer(Construction* from, const std::string& name) {
  std::int64_t value = 0;
  call(api().get_integer, from, name.c_str(), &value);
  return value;
}

/// The position of the label whose dtype a type attribute has.
std::int64_t read_dtype_label(Construction* from, const AttributeSpec& spec) {
  Type type = Type::float32;
  call(api().get_type, from, std::string(spec.name).c_str(), &type);
  return spec.position_of(types.find(type).value_or(DType::float32));  // TensorFlow checks it
}

Attribute read_attribute(Construction* from, const AttributeSpec& spec) {
  const std::string name(spec.name);
  switch (spec.type) {
    case AttributeType::boolean:
    case AttributeType::integer:
      return read_integer(from, name);
    case AttributeType::label: {
      if (spec.is_dtype) return read_dtype_label(from, spec);
      std::array<char, 256> text{};
      call(api().get_text, from, name.c_str(), text.data(), text.size() - 1);
      const auto label = std::ranges::find(spec.labels, std::string_view(text.data()));
      return std::int64_t{label - spec.labels.begin()};  // TensorFlow checks the text
    }
    case AttributeType::real:
      break;
  }
  float value = 0;
  call(api().get_real, from, name.c_str(), &value);
  return static_cast<double>(value);
}

std::unique_ptr<Node> read_node(const Op& op, Construction* from) {
  auto node = std::make_unique<Node>(Node{.op = op, .attributes = {}});
  const auto attributes = std::span(node->attributes).first(op.signature.attributes.size());
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    attributes[i] = read_attribute(from, op.signature.attributes[i]);
  }
  check(check_attributes(op, attributes));
  for (std::size_t i = 0; i < op.signature.inputs.size(); ++i) {
    const Parameter& input = op.signature.inputs[i];
    const std::int64_t count = input.optional ? read_integer(from, count_of(input)) : 1;
    if (count > 1) {
      fail(cudarelu::Status::Code::invalid_argument, op,
           std::string(input.name) + " must be a list of at most one tensor, not of " +
               std::to_string(count));
    }
    node->present[i] = count == 1;
  }
  return node;
}

void* create(const Op& op, Construction* construction) noexcept {
  std::unique_ptr<Node> node;
  const cudarelu::Status status = guarded([&] { node = read_node(op, construction); });
  if (!status.ok()) report(api().fail_construction, construction, status);
  return node.release();
}

/// One call of a kernel.
class Run {
 public:
  Run(const Node& node, Context* context) : call_(node.op), context_(context) {
    int position = 0;  // of an input among TensorFlow's
    for (std::size_t i = 0; i < call_.inputs.size(); ++i) {
      call_.inputs[i].present = node.present[i];
      if (!node.present[i]) continue;
      positions_[i] = position++;
      read_input(i);
    }
    std::copy_n(node.attributes.begin(), call_.attributes.size(), call_.attributes.begin());
  }

  void run() {
    check(call_.infer());
    for (std::size_t i = 0; i < call_.outputs.size(); ++i) allocate(i);
    HostExecution execution(DeviceType::cpu, 0, nullptr);
    check(call_.run(execution));
  }

 private:
  void read_input(std::size_t i) {
    Tensor* tensor = nullptr;
    call(api().get_input, context_, positions_[i], &tensor);
    input_owners_[i].reset(tensor);
    const auto dtype = types.find(api().type_of(tensor));
    const auto rank = static_cast<std::size_t>(api().dimensions(tensor));
    auto& shape = shapes_[i];
    if (!dtype || rank > shape.size()) {
      fail(cudarelu::Status::Code::invalid_argument, call_.op,
           std::string(call_.op.signature.inputs[i].name) +
               " has a dtype or a number of dimensions that is not supported");
    }
    for (std::size_t d = 0; d < rank; ++d) {
      shape[d] = api().size_of(tensor, static_cast<int>(d));
    }
    call_.inputs[i] = {api().data_of(tensor), *dtype, {shape.data(), rank}};
  }

  void allocate(std::size_t i) {
    TensorView& view = call_.outputs[i];
    view = {nullptr, call_.types[i].dtype, call_.types[i].shape.span()};
    const auto bytes = static_cast<std::size_t>(view.size()) * size_of(view.dtype);
    const auto rank = static_cast<int>(view.shape.size());
    const auto output = static_cast<int>(i);
    if (output == call_.op.in_place_output && bytes > 0) {
      // TensorFlow lends the memory of an input that nothing else refers to.
      const auto input = static_cast<std::size_t>(call_.op.in_place_input);
      int forwarded = -1;
      input_owners_[input].reset();
      output_owners_[i].reset(call(api().forward_or_allocate, context_, &positions_[input], 1,
                                   output, view.shape.data(), rank, &forwarded));
      view.data = api().data_of(output_owners_[i].get());
      if (forwarded < 0) return read_input(input);
      call_.inputs[input].data = view.data;
      return;
    }
    output_owners_[i].reset(call(api().allocate_output, context_, output, types[view.dtype],
                                 view.shape.data(), rank, bytes));
    view.data = api().data_of(output_owners_[i].get());
  }

  HostCall call_;
  Context* const context_;
  std::array<int, max_inputs> positions_{};
  std::array<TensorOwner, max_inputs> input_owners_;
  std::array<TensorOwner, max_outputs> output_owners_;
  std::array<std::array<std::int64_t, max_rank>, max_inputs> shapes_;
};

void compute(void* node, Context* context) noexcept {
  const cudarelu::Status status =
      guarded([&] { Run(*static_cast<const Node*>(node), context).run(); });
  if (!status.ok()) report(api().fail_call, context, status);
}

void destroy(void* node) noexcept { delete static_cast<Node*>(node); }

// Registration. TensorFlow calls functions without user data, so each op has its own.

constexpr std::size_t max_ops = 512;
std::array<const Op*, max_ops> registered{};

struct Callbacks {
  void* (*create)(Construction*);
  void (*infer)(ShapeContext*, tf::Status*);
};

template <std::size_t... i>
constexpr std::array<Callbacks, max_ops> make_callbacks(std::index_sequence<i...> /*positions*/) {
  return {Callbacks{
      [](Construction* construction) { return create(*registered[i], construction); },
      [](ShapeContext* context, tf::Status* to) { infer(*registered[i], context, to); }}...};
}
constexpr std::array<Callbacks, max_ops> callbacks =
    make_callbacks(std::make_index_sequence<max_ops>());

/// "eps: float = 1e-5"
std::string declaration_of(const AttributeSpec& spec) {
  std::string text(spec.name);
  if (spec.is_dtype) {
    DTypeSet dtypes;
    for (std::size_t i = 0; i < spec.labels.size(); ++i) {
      dtypes.insert(spec.dtype_at(static_cast<std::int64_t>(i)));
    }
    const DType chosen = spec.dtype_at(static_cast<std::int64_t>(spec.default_value));
    return declaration_of(text, dtypes, spec.required ? std::nullopt : std::optional(chosen));
  }
  if (spec.type == AttributeType::label) {
    text += ": {";
    for (const std::string_view label : spec.labels) {
      text += (label == spec.labels[0] ? "'" : ", '") + std::string(label) + "'";
    }
    text += '}';
  } else {
    text += spec.type == AttributeType::real ? ": float" : ": int";
  }
  if (spec.required) return text;
  const std::string quote(spec.type == AttributeType::label ? "'" : "");
  return text + " = " + quote + default_text_of(spec) + quote;
}

std::string declaration_of(const Signature& signature, const Parameter& tensor) {
  const std::string type = type_attribute_of(signature, tensor);
  return std::string(tensor.name) + ": " +
         (tensor.optional ? count_of(tensor) + " * " : std::string()) +
         (type.empty() ? type_names[tensor.dtype({})] : type);
}

/// Adds the attributes that have the dtypes of the inputs. A default is for calls without a tensor
/// that has it.
void add_type_attributes(OpBuilder* builder, const Op& op) {
  const Signature& signature = op.signature;
  std::vector<std::string> added;
  for (const Parameter& input : signature.inputs) {
    const std::string name = type_attribute_of(signature, input);
    if (name.empty() || std::ranges::find(added, name) != added.end()) continue;
    added.push_back(name);
    const bool required = std::ranges::any_of(signature.inputs, [&](const Parameter& other) {
      return !other.optional && type_attribute_of(signature, other) == name;
    });
    std::optional<DType> last;
    for (const DType dtype : all_dtypes) {
      if (!required && dtypes_of(op, input).contains(dtype)) last = dtype;
    }
    api().add_attribute(builder, declaration_of(name, dtypes_of(op, input), last).c_str());
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
    api().add_input(builder, declaration_of(op.signature, input).c_str());
  }
  for (const AttributeSpec& spec : op.signature.attributes) {
    api().add_attribute(builder, declaration_of(spec).c_str());
  }
  for (const Parameter& output : op.signature.outputs) {
    api().add_output(builder, declaration_of(op.signature, output).c_str());
  }
  api().set_shape_function(builder, functions.infer);
  call(api().register_op, builder);
  KernelBuilder* const kernel =
      api().new_kernel(name.c_str(), "CPU", functions.create, compute, destroy);
  call(api().register_kernel, name.c_str(), kernel);
}

/// The modules of this library, at least one: the first one's ops are registered.
std::vector<std::filesystem::path> module_paths() {
  const std::filesystem::path own = library_of(reinterpret_cast<const void*>(&module_paths));
  std::vector<std::filesystem::path> paths;
  std::ifstream file(own.string() + ".module");
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) paths.emplace_back(line);
  }
  if (paths.empty()) paths.push_back(own.parent_path() / engine_library);
  return paths;
}

void register_ops() {
  const std::vector<std::filesystem::path> paths = module_paths();
  auto opened = open_module(paths.front());
  const Module* const module = &add_module(std::move(opened));
  for (const auto& other : std::span(paths).subspan(1)) add_module(open_module(other));
  std::size_t count = 0;
  for (const Op& op : module->ops) {
    if (op.cpu == nullptr) continue;
    if (count == max_ops) {
      throw std::runtime_error("at most " + std::to_string(max_ops) + " ops of " +
                               module->path.string() + " can be registered");
    }
    registered[count] = &op;
    register_op(op, callbacks[count]);
    ++count;
  }
}

/// Runs when the library is loaded; does nothing in a process without TensorFlow.
__attribute__((constructor)) void start() noexcept {
  if (library() == nullptr) return;
  const cudarelu::Status status = guarded(register_ops);
  if (!status.ok()) std::fprintf(stderr, "cudarelu: %s\n", status.message().c_str());
}

}  // namespace
}  // namespace cudarelu::tf

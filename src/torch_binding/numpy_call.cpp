#include "numpy_call.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "api.h"

namespace nb = nanobind;

namespace cudarelu::binding {
namespace {

/// A dense array that is an argument or result of the call.
struct Array {
  nb::object object;
  DType dtype{};
  std::vector<std::int64_t> shape;
  void* data = nullptr;

  TensorView view() const { return {data, dtype, shape, true}; }
};

/// Returns the module numpy, or nothing if it has not been imported, so that no array can exist.
nb::object numpy() { return nb::steal(PyImport_GetModule(nb::str("numpy").ptr())); }

/// Reads the address and shape of a dense array. Unlike DLPack and the buffer protocol,
/// __array_interface__ supports read-only arrays and bfloat16.
Array dense_array(nb::object object, DType dtype) {
  Array array;
  array.object = std::move(object);
  array.dtype = dtype;
  const nb::dict interface = array.object.attr("__array_interface__");
  // "data" is a pair: the address, and whether the array is read-only.
  array.data = PyLong_AsVoidPtr(nb::object(interface["data"][0]).ptr());
  for (const nb::handle size : nb::tuple(interface["shape"])) {
    array.shape.push_back(nb::cast<std::int64_t>(size));
  }
  return array;
}

std::optional<DType> dtype_of(nb::handle dtype) {
  const nb::str kind(dtype.attr("kind"));
  const auto bytes = nb::cast<std::size_t>(dtype.attr("itemsize"));
  for (const DType known : all_dtypes) {
    // bfloat16 is not a dtype of NumPy itself; it is recognized by its name below.
    if (known == DType::bfloat16 || size_of(known) != bytes) continue;
    const std::string_view name = name_of(known);
    if (kind.c_str()[0] == name[0]) return known;
  }
  const nb::str name(dtype.attr("name"));
  if (name.c_str() == name_of(DType::bfloat16)) return DType::bfloat16;
  return std::nullopt;
}

Array input_array(const Op& op, std::size_t input, nb::handle object) {
  nb::object dtype = object.attr("dtype");
  const std::optional<DType> known = dtype_of(dtype);
  if (!known) {
    const Status status = unknown_dtype(op, input, nb::str(dtype.attr("name")).c_str());
    throw nb::type_error(status.message().c_str());
  }
  const nb::object flags = object.attr("flags");
  const bool native = nb::cast<bool>(dtype.attr("isnative"));
  if (native && nb::cast<bool>(flags.attr("c_contiguous")) &&
      nb::cast<bool>(flags.attr("aligned"))) {
    return dense_array(nb::borrow(object), *known);
  }
  if (!native) dtype = dtype.attr("newbyteorder")("=");
  return dense_array(numpy().attr("require")(object, dtype, "CA"), *known);
}

Array output_array(const OutputType<std::int64_t>& type) {
  nb::list shape;
  for (const std::int64_t size : type.shape.span()) shape.append(size);
  const std::string name(name_of(type.dtype));
  // Only ml_dtypes provides bfloat16, so it is installed if an input has that dtype.
  const nb::object dtype = type.dtype == DType::bfloat16
                               ? nb::module_::import_("ml_dtypes").attr("bfloat16")
                               : nb::object(nb::str(name.c_str()));
  return dense_array(numpy().attr("empty")(nb::tuple(shape), dtype), type.dtype);
}

}  // namespace

void raise_python(const Status& status) {
  switch (status.code()) {
    case Status::Code::ok:
      return;
    case Status::Code::invalid_argument:
      throw nb::value_error(status.message().c_str());
    case Status::Code::unsupported_dtype:
      throw nb::type_error(status.message().c_str());
    case Status::Code::out_of_memory:
      PyErr_SetString(PyExc_MemoryError, status.message().c_str());
      throw nb::python_error();
    default:
      throw std::runtime_error(status.message());
  }
}

bool is_numpy_array(nb::handle object) {
  const nb::object module = numpy();
  if (!module.is_valid() || !nb::isinstance(object, module.attr("ndarray"))) return false;
  return object.type().is(module.attr("ndarray")) ||
         !nb::isinstance(object, module.attr("ma").attr("MaskedArray"));
}

nb::object call_on_numpy(const Op& op, const Arguments& arguments) {
  std::vector<Array> inputs;
  std::vector<TensorView> input_views(arguments.inputs.size());
  inputs.reserve(arguments.inputs.size());
  for (std::size_t i = 0; i < arguments.inputs.size(); ++i) {
    if (!arguments.inputs[i].is_valid()) {
      input_views[i].present = false;
    } else {
      inputs.push_back(input_array(op, i, arguments.inputs[i]));
      input_views[i] = inputs.back().view();
    }
  }
  std::vector<OutputType<std::int64_t>> types(op.signature.outputs.size());
  raise_python(infer<std::int64_t>(op, std::span<const TensorView>(input_views),
                                   arguments.attributes, std::span(types)));

  std::vector<Array> outputs;
  std::vector<TensorView> output_views;
  outputs.reserve(types.size());
  for (const OutputType<std::int64_t>& type : types) {
    outputs.push_back(output_array(type));
    output_views.push_back(outputs.back().view());
  }
  Status status;
  {
    const nb::gil_scoped_release released;
    status = run_on_host(op, input_views, output_views, arguments.attributes);
  }
  raise_python(status);
  c10::SmallVector<nb::object, 4> results;
  for (Array& output : outputs) results.push_back(std::move(output.object));
  return result_of(std::move(results));
}

}  // namespace cudarelu::binding

#include "attributes.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "cudarelu/infer.h"
#include "element_type.h"
#include "runtime.h"
#include "tensor.h"

namespace cudarelu::ort {
namespace {

std::optional<Attribute> read_real(const OrtApi& api, const OrtKernelInfo& node, const char* name) {
  float value = 0;
  if (!succeeded(api, api.KernelInfoGetAttribute_float(&node, name, &value))) return std::nullopt;
  return static_cast<double>(value);
}

std::optional<Attribute> read_integer(const OrtApi& api, const OrtKernelInfo& node,
                                      const char* name) {
  std::int64_t value = 0;
  if (!succeeded(api, api.KernelInfoGetAttribute_int64(&node, name, &value))) return std::nullopt;
  return value;
}

/// Whether the node has an attribute of that name that is not a number. The API does not
/// distinguish an attribute of another type from a missing one, so each type is tried.
bool is_not_a_number(const OrtApi& api, const OrtKernelInfo& node, const char* name) {
  std::size_t size = 0;
  if (succeeded(api, api.KernelInfoGetAttribute_string(&node, name, nullptr, &size)) ||
      succeeded(api, api.KernelInfoGetAttributeArray_float(&node, name, nullptr, &size)) ||
      succeeded(api, api.KernelInfoGetAttributeArray_int64(&node, name, nullptr, &size))) {
    return true;
  }
  OrtAllocator* allocator = nullptr;  // the default allocator; not to be released
  OrtValue* tensor = nullptr;
  if (!succeeded(api, api.GetAllocatorWithDefaultOptions(&allocator)) ||
      !succeeded(api, api.KernelInfoGetAttribute_tensor(&node, name, allocator, &tensor))) {
    return false;
  }
  api.ReleaseValue(tensor);
  return true;
}

/// The position of the label that a node has as the number of a dtype in ONNX, for an attribute
/// that chooses a dtype; -1, which is out of range, for another dtype.
Attribute to_position(const AttributeSpec& spec, Attribute value) {
  const auto* const number = std::get_if<std::int64_t>(&value);
  if (!spec.is_dtype || number == nullptr) return value;
  const auto dtype = element_types.find(static_cast<ONNXTensorElementDataType>(*number));
  return dtype ? spec.position_of(*dtype) : std::int64_t{-1};
}

Attribute read(const OrtApi& api, const OrtKernelInfo& node, const Op& op,
               const AttributeSpec& spec) {
  const std::string name(spec.name);
  // Reads a number of the wrong kind too: check_attributes() reports it.
  const bool is_real = spec.type == AttributeType::real;
  const auto first = is_real ? read_real : read_integer;
  const auto second = is_real ? read_integer : read_real;
  if (const auto value = first(api, node, name.c_str())) return to_position(spec, *value);
  if (const auto value = second(api, node, name.c_str())) return *value;
  if (is_not_a_number(api, node, name.c_str())) {
    fail(Status::Code::invalid_argument, op, name + " must be " + kind_of(spec));
  }
  if (spec.required) {
    fail(Status::Code::invalid_argument, op, "attribute " + name + " is missing");
  }
  return onnx_default_of(spec);
}

/// The dtypes that an attribute may have as an input.
DTypeSet dtypes_of(AttributeType type) {
  switch (type) {
    case AttributeType::real:
      return DTypeSet::of({DType::float32, DType::float64});
    case AttributeType::boolean:
      return DTypeSet::of({DType::boolean});
    case AttributeType::integer:
    case AttributeType::label:
      break;
  }
  return DTypeSet::of({DType::int32, DType::int64});
}

bool is_input(const CustomOp& custom_op, std::size_t attribute) {
  return std::ranges::find(custom_op.inputs, NodeInput{true, attribute}) != custom_op.inputs.end();
}

}  // namespace

Attribute read_attribute(const OrtApi& api, const Op& op, const AttributeSpec& spec,
                         const OrtValue* value) {
  const DTypeSet dtypes = dtypes_of(spec.type);
  const std::optional<DType> dtype =
      value == nullptr ? std::nullopt : dtype_of_one_element(api, *value);
  if (!dtype || !dtypes.contains(*dtype)) {
    fail(Status::Code::invalid_argument, op,
         std::string(spec.name) +
             " must be a tensor of one element, of shape [] or [1] and of dtype " +
             names_of(dtypes));
  }
  const void* const data = data_of(api, *value);
  switch (*dtype) {
    case DType::float32:
      return static_cast<double>(*static_cast<const float*>(data));
    case DType::float64:
      return *static_cast<const double*>(data);
    case DType::int32:
      return static_cast<std::int64_t>(*static_cast<const std::int32_t*>(data));
    case DType::int64:
      return *static_cast<const std::int64_t*>(data);
    default:
      return static_cast<std::int64_t>(*static_cast<const bool*>(data));
  }
}

Attribute onnx_default_of(const AttributeSpec& spec) {
  Attribute value = default_of(spec);
  if (double* real = std::get_if<double>(&value)) *real = static_cast<float>(*real);
  return value;
}

std::vector<Attribute> read_attributes(const OrtApi& api, const OrtKernelInfo& node,
                                       const CustomOp& custom_op) {
  const Op& op = custom_op.op;
  std::vector<Attribute> attributes;
  for (const AttributeSpec& spec : op.signature.attributes) {
    attributes.push_back(is_input(custom_op, attributes.size()) ? onnx_default_of(spec)
                                                                : read(api, node, op, spec));
  }
  // The values of inputs are not known yet, so that the kernel checks all in each run.
  if (!custom_op.has_attribute_inputs) check(check_attributes(op, attributes));
  return attributes;
}

std::optional<std::vector<Attribute>> read_attributes(const OrtApi& api,
                                                      const OrtShapeInferContext& node,
                                                      const CustomOp& custom_op) {
  std::vector<Attribute> attributes;
  for (const AttributeSpec& spec : custom_op.op.signature.attributes) {
    if (is_input(custom_op, attributes.size())) {
      attributes.push_back(unknown_integer);
      continue;
    }
    const OrtOpAttr* attribute = nullptr;
    if (!succeeded(api, api.ShapeInferContext_GetAttribute(&node, std::string(spec.name).c_str(),
                                                           &attribute))) {
      attributes.push_back(onnx_default_of(spec));
      continue;
    }
    std::size_t length = 0;
    std::int64_t integer = 0;
    float real = 0;
    const bool is_real = spec.type == AttributeType::real;
    OrtStatus* status =
        is_real ? api.ReadOpAttr(attribute, ORT_OP_ATTR_FLOAT, &real, sizeof real, &length)
                : api.ReadOpAttr(attribute, ORT_OP_ATTR_INT, &integer, sizeof integer, &length);
    if (!succeeded(api, status)) return std::nullopt;
    attributes.push_back(is_real ? Attribute(double{real}) : to_position(spec, Attribute(integer)));
  }
  return attributes;
}

}  // namespace cudarelu::ort

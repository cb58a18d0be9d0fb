#include "attributes.h"

#include <cstdint>
#include <string>

#include "cudarelu/infer.h"
#include "runtime.h"

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

Attribute read(const OrtApi& api, const OrtKernelInfo& node, const Op& op,
               const AttributeSpec& spec) {
  const std::string name(spec.name);
  // Reads a number of the wrong kind too: check_attributes() reports it.
  const bool is_real = spec.type == AttributeType::real;
  const auto first = is_real ? read_real : read_integer;
  const auto second = is_real ? read_integer : read_real;
  if (const auto value = first(api, node, name.c_str())) return *value;
  if (const auto value = second(api, node, name.c_str())) return *value;
  if (is_not_a_number(api, node, name.c_str())) {
    fail(api, {Status::Code::invalid_argument,
               std::string(op.name) + ": " + name + " must be " + kind_of(spec)});
  }
  if (spec.required) {
    fail(api, {Status::Code::invalid_argument,
               std::string(op.name) + ": attribute " + name + " is missing"});
  }
  return onnx_default_of(spec);
}

}  // namespace

Attribute onnx_default_of(const AttributeSpec& spec) {
  Attribute value = default_of(spec);
  if (double* real = std::get_if<double>(&value)) *real = static_cast<float>(*real);
  return value;
}

std::vector<Attribute> read_attributes(const OrtApi& api, const OrtKernelInfo& node, const Op& op) {
  std::vector<Attribute> attributes;
  for (const AttributeSpec& spec : op.signature.attributes) {
    attributes.push_back(read(api, node, op, spec));
  }
  check(api, check_attributes(op, attributes));
  return attributes;
}

std::optional<std::vector<Attribute>> read_attributes(const OrtApi& api,
                                                      const OrtShapeInferContext& node,
                                                      const Op& op) {
  std::vector<Attribute> attributes;
  for (const AttributeSpec& spec : op.signature.attributes) {
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
    attributes.push_back(is_real ? Attribute(double{real}) : Attribute(integer));
  }
  return attributes;
}

}  // namespace cudarelu::ort

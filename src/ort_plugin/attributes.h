// Reading the attributes of a node that the op's signature declares.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "custom_op.h"

namespace cudarelu::ort {

/// Returns the value of an attribute that a node omits. It is rounded to float32, the type of
/// ONNX's attributes, so that it equals the value of a node that states the default.
Attribute onnx_default_of(const AttributeSpec& spec);

/// Reads all attributes of a node when its kernel is created; those that are inputs have their
/// defaults. Throws a Failure that names the op and the attribute if one is missing, of the wrong
/// type or out of range.
std::vector<Attribute> read_attributes(const OrtApi& api, const OrtKernelInfo& node,
                                       const CustomOp& custom_op);

/// Reads all attributes of a node during shape inference. The inputs among them have no value that
/// ONNX Runtime shows: they are unknown_integer. Returns nothing if one cannot be read.
std::optional<std::vector<Attribute>> read_attributes(const OrtApi& api,
                                                      const OrtShapeInferContext& node,
                                                      const CustomOp& custom_op);

/// Reads the value of an attribute from an input of a node. Throws a Failure, with the name of the
/// op, unless it is one element of shape [] or [1], of a dtype of the attribute's type.
Attribute read_attribute(const OrtApi& api, const Op& op, const AttributeSpec& spec,
                         const OrtValue* value);

}  // namespace cudarelu::ort

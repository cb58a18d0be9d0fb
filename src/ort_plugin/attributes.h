// Reading the attributes of a node that the op's signature declares.
#pragma once

#include <onnxruntime_c_api.h>

#include <optional>
#include <vector>

#include "cudarelu/op.h"

namespace cudarelu::ort {

/// Returns the value of an attribute that a node omits. It is rounded to float32, the type of
/// ONNX's attributes, so that it equals the value of a node that states the default.
Attribute onnx_default_of(const AttributeSpec& spec);

/// Reads all attributes of a node when its kernel is created. Throws a Failure that names the op
/// and the attribute if one is missing, of the wrong type or out of range.
std::vector<Attribute> read_attributes(const OrtApi& api, const OrtKernelInfo& node, const Op& op);

/// Reads all attributes of a node during shape inference. Returns nothing if one cannot be read.
std::optional<std::vector<Attribute>> read_attributes(const OrtApi& api,
                                                      const OrtShapeInferContext& node,
                                                      const Op& op);

}  // namespace cudarelu::ort

// The attributes of a node, as the op's signature wants them.
#pragma once

#include <onnxruntime_c_api.h>

#include <optional>
#include <vector>

#include "cudarelu/call.h"

namespace cudarelu::ort {

/// The value of an attribute that a node leaves out. ONNX's attributes are float32: the default is
/// rounded to what a node that states it would hold.
Attribute onnx_default_of(const AttributeSpec& spec);

/// When a kernel is created: all attributes of its node. Throws a Failure that names the op and
/// the attribute where one is missing, of the wrong type or out of range.
std::vector<Attribute> read_attributes(const OrtApi& api, const OrtKernelInfo& node, const Op& op);

/// When shapes are inferred: all attributes of the node, or nothing where one cannot be read.
std::optional<std::vector<Attribute>> read_attributes(const OrtApi& api,
                                                      const OrtShapeInferContext& node,
                                                      const Op& op);

}  // namespace cudarelu::ort

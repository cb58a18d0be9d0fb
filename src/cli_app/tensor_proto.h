// ONNX's TensorProto files, as in the folders of its tests: input_0.pb, output_0.pb.
#pragma once

#include <string>
#include <string_view>

#include "tensor.h"

namespace cudarelu::cli {

/// The tensor that `bytes` are the message of. Throws an Error that begins with `label` where they
/// are no such message, are fewer or more than its shape says, keep their data elsewhere, or hold
/// elements that are not in element_types.
Tensor parse_tensor_proto(std::string_view bytes, const std::string& label);

}  // namespace cudarelu::cli

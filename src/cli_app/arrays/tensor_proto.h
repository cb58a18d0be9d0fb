// Reading ONNX's TensorProto files, such as input_0.pb and output_0.pb in ONNX's test folders.
#pragma once

#include <string>
#include <string_view>

#include "arrays/tensor.h"

namespace cudarelu::cli {

/// Parses a serialized TensorProto. Throws an Error that begins with `label` if the bytes are not
/// such a message, if the data does not fit the shape or is in another file, or if the type is not
/// in element_types.
Tensor parse_tensor_proto(std::string_view bytes, const std::string& label);

}  // namespace cudarelu::cli

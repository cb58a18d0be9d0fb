// The description of an op's kernel for ONNX Runtime.
#pragma once

#include <onnxruntime_c_api.h>

#include <optional>
#include <string>
#include <vector>

#include "cudarelu/op.h"
#include "runtime.h"

namespace cudarelu::ort {

/// The dtypes of the tensors of a custom op. Nothing is any type for ONNX Runtime: the dtype of an
/// input that may have several, or of an output whose dtype an attribute chooses.
struct TensorTypes {
  VariableDTypes variables{};
  std::vector<std::optional<DType>> inputs;
  std::vector<std::optional<DType>> outputs;
};

/// The combinations of dtypes for which an op is registered: of its type variables, and of inputs
/// that determine the dtype of an output.
std::vector<TensorTypes> tensor_types(const Op& op, const Runtime& runtime);

/// One op for one provider and one combination of dtypes. ONNX Runtime merges all of the same name
/// into one schema and selects one for each node.
struct CustomOp : OrtCustomOp {
  CustomOp(const Runtime& runtime, const Op& op, std::string_view onnx_type,
           std::vector<NodeInput> inputs, DeviceType device, TensorTypes types);

  Runtime runtime;
  const Op& op;
  std::string onnx_type;
  std::vector<NodeInput> inputs;  // of a node
  bool has_attribute_inputs;      // some of the inputs are attributes of the op
  DeviceType device;
  TensorTypes types;
};

}  // namespace cudarelu::ort

// The description of an op's kernel for ONNX Runtime.
#pragma once

#include <onnxruntime_c_api.h>

#include <string>
#include <vector>

#include "cudarelu/op.h"
#include "runtime.h"

namespace cudarelu::ort {

/// One op for one provider and one value of the type variable T. ONNX Runtime merges all of the
/// same name into one schema and selects one for each node.
struct CustomOp : OrtCustomOp {
  CustomOp(const Runtime& runtime, const Op& op, std::string_view onnx_type,
           std::vector<NodeInput> inputs, DeviceType device, DType variable);

  Runtime runtime;
  const Op& op;
  std::string onnx_type;
  std::vector<NodeInput> inputs;  // of a node
  bool has_attribute_inputs;      // some of the inputs are attributes of the op
  DeviceType device;
  DType variable;  // the value of T
};

}  // namespace cudarelu::ort

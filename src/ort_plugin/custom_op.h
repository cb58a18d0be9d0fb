// A kernel of an op as ONNX Runtime wants it described.
#pragma once

#include <onnxruntime_c_api.h>

#include <string>

#include "cudarelu/call.h"
#include "runtime.h"

namespace cudarelu::ort {

/// One op for one provider and one value of the type variable T. ONNX Runtime merges those of one
/// name into one schema and chooses among them for each node.
struct CustomOp : OrtCustomOp {
  CustomOp(const Runtime& runtime, const Op& op, std::string_view onnx_type, DeviceType device,
           DType variable);

  Runtime runtime;
  const Op& op;
  std::string onnx_type;
  DeviceType device;
  DType variable;  // what T stands for
};

}  // namespace cudarelu::ort

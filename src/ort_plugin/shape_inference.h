// Shape inference when a model is loaded.
#pragma once

#include <onnxruntime_c_api.h>

namespace cudarelu::ort {

/// Sets the shapes of a node's outputs that follow from its inputs, with symbolic sizes. Always
/// returns null, since ONNX Runtime ignores and leaks errors here; creating or running the kernel
/// reports them.
OrtStatus* infer_shapes(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept;

}  // namespace cudarelu::ort

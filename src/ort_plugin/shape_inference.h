// Shapes of a node's outputs when a model is loaded.
#pragma once

#include <onnxruntime_c_api.h>

namespace cudarelu::ort {

/// Tells ONNX Runtime the outputs' shapes where they follow from the inputs', symbolic sizes
/// included. Always returns null: the runtime looks at no error here and never releases one, so
/// what is wrong is said when the kernel is created or called.
OrtStatus* infer_shapes(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept;

}  // namespace cudarelu::ort

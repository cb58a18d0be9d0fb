// In-place operators in the graphs of TorchScript's tracer.
#pragma once

#include <torch/library.h>

#include "api.h"

namespace cudarelu::binding {

/// Returns the kernel for the Tracer key of an in-place operator. It adds the call to the graph as
/// torch's own fallback does, after the check of check_traced_writes().
torch::CppFunction tracer_kernel(const Op& op);

/// Does the check of check_traced_writes() too if TorchScript's interpreter calls the operator, as
/// PyTorch's exporter to ONNX makes it do.
void check_interpreted_write(const Op& op);

}  // namespace cudarelu::binding

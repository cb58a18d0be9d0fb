// Casts of the inputs of an op by torch.autocast.
#pragma once

#include <torch/library.h>

#include "cudarelu/op.h"

namespace cudarelu::binding {

/// Whether autocast may have to cast inputs of the op.
bool has_autocast(const Op& op);

/// Returns the kernel for AutocastCPU or AutocastCUDA: it casts the inputs as the op declares, then
/// calls the op.
torch::CppFunction autocast_kernel(const Op& op, c10::DeviceType device);

}  // namespace cudarelu::binding

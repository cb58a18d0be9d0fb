// What torch.autocast does with the inputs of an op.
#pragma once

#include <torch/library.h>

#include "cudarelu/op.h"

namespace cudarelu::binding {

/// Whether there are calls whose inputs autocast has to cast.
bool has_autocast(const Op& op);

/// Casts the inputs for AutocastCPU or AutocastCUDA as the op declares, then calls it.
torch::CppFunction autocast_kernel(const Op& op, c10::DeviceType device);

}  // namespace cudarelu::binding

// The CUDA device of a call.
#pragma once

#include "cudarelu/call.h"

namespace cudarelu::cuda {

/// Runs `kernel` with the call's device current, and makes the device before it current again.
Status run_on_device(const Call& call, Kernel kernel);

}  // namespace cudarelu::cuda

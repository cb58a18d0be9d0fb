// Inputs of a node that stand for absent ones.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>

#include "custom_op.h"

namespace cudarelu::ort {

/// A bit for each input of the op whose tensor is a constant of one element, the number that the
/// signature has for an absent one, such as a mask of one 0. Models have them, since the body of a
/// function cannot leave out an input. Kernels are faster without.
std::uint64_t find_absent_inputs(const OrtApi& api, const OrtKernelInfo& node,
                                 const CustomOp& custom_op);

}  // namespace cudarelu::ort

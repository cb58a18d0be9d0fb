// The activation of a product as a separate kernel, for engines without it in their epilogue.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::cuda {

/// y[i] = activation(x[i]) for `size` elements; y may be x.
Status activate(const Call& call, Activation activation, DType dtype, std::int64_t size,
                const void* x, void* y);

}  // namespace cudarelu::cuda

// What follows a product as separate kernels, for engines without it in their epilogue.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/gemm.h"

namespace cudarelu::gpu {

/// y[i] = activation(x[i]) for `size` elements; y may be x.
Status activate(const Call& call, Activation activation, DType dtype, std::int64_t size,
                const void* x, void* y);

/// d = activation(x), plus or times the other matrix of a product; d may be x.
Status activate_and_combine(const Call& call, const Gemm& gemm, Activation activation,
                            const void* x);

}  // namespace cudarelu::gpu

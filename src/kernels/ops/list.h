// The list of ops. The position of an op is its id: append, never insert, move or remove.
#pragma once

#include "all_ops.h"  // made by sources.sh: every header of this folder

namespace cudarelu::ops {

template <class... F>
struct List {};

// clang-format off
using All = List<
    Relu,
    ReluBackward,
    LeakyRelu,
    LeakyReluBackward,
    Tanh,
    TanhBackward,
    Asinh,
    AsinhBackward,
    Add,
    ScaledAdd,
    Mul,
    Scale,
    ReluScale,
    ReluScaleBackward,
    BiasRelu,
    BiasReluBackward,
    ExpandRows,
    SumRows,
    Softmax,
    SoftmaxBackward,
    RowSum,
    KnnQuery,
    LayerNorm,
    LayerNormBackward,
    RowMean,
    RowRstd,
    GridCluster,
    Gelu,
    GeluBackward,
    GeluSecondDerivative,
    Matmul,
    MatmulNt,
    MatmulTn,
    Linear,
    LinearInputBackward,
    LinearWeightBackward,
    LinearRelu,
    LinearGelu,
    LinearGeluWithSum>;
// clang-format on

}  // namespace cudarelu::ops

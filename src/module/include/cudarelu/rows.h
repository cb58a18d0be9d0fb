// For ops that work on rows, which are vectors along the last dimension. Such an op has functions
// of its own, as kernel.h describes. cpu::for_each_row() and gpu::launch_rows() give a kernel its
// rows, with the loads, the reductions and the choice of threads that suit their length; cpu/rows.h
// and cuda/rows.cuh document them, cpu/moments.h and cuda/moments.cuh the mean and the variance.
#pragma once

#include "cudarelu/kernel.h"
#ifdef __CUDACC__
#include "cudarelu/detail/cuda/async_copy.cuh"
#include "cudarelu/detail/cuda/moments.cuh"
#include "cudarelu/detail/cuda/pace.cuh"
#include "cudarelu/detail/cuda/rows.cuh"
#else
#include "cudarelu/detail/cpu/moments.h"
#include "cudarelu/detail/cpu/rows.h"
#endif

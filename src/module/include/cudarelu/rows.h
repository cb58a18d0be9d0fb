// For ops that work on rows, which are vectors along the last dimension. Such an op has functions
// of its own, as kernel.h describes. cpu::for_each_row() and cuda::launch_rows() give a kernel its
// rows, with the loads, the reductions and the choice of threads that suit their length; cpu/rows.h
// and cuda/rows.cuh document them, cpu/moments.h and cuda/moments.cuh the mean and the variance.
#pragma once

#include "cudarelu/kernel.h"
#ifdef __CUDACC__
#include "cudarelu/cuda/moments.cuh"
#include "cudarelu/cuda/rows.cuh"
#else
#include "cudarelu/cpu/moments.h"
#include "cudarelu/cpu/rows.h"
#endif

// For ops with kernels of their own. Such an op is a struct with its declaration and functions for
// the devices that it supports:
//
//   struct TopK {
//     static constexpr OpSpec spec{.signature = ..., .summary = ..., ...};
//     static Status cpu(const Call& call);   // defined in a .cpp
//     static Status cuda(const Call& call);  // defined in a .cu
//   };
//
// One of the two is enough: a call on the other device is an error, which names the op.
//
// A function reads call.inputs, writes call.outputs, which the host has allocated, and takes all
// other resources from call.execution. It returns a Status; an exception becomes an error of the
// call. On CUDA it enqueues its work on call.execution.stream, best by launch() of
// cudarelu/detail/cuda/launch.cuh, and never waits for the device.
//
// The tensors of a call are dense. With `.strided = true` in its spec, an op also gets views from
// PyTorch without a copy, of any input of type T, and reads the strides of each from call.strides.
#pragma once

#include "cudarelu/call.h"
#include "cudarelu/detail/workspace.h"
#include "cudarelu/op_spec.h"
#include "cudarelu/types.h"
#ifdef __CUDACC__
#include "cudarelu/detail/cuda/launch.cuh"
#endif

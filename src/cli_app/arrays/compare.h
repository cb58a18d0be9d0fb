// Comparison of an output with its expected values.
#pragma once

#include <cstdint>
#include <string>

#include "arrays/tensor.h"

namespace cudarelu::cli {

struct Tolerance {
  double relative = 1e-3;
  double absolute = 1e-5;
};

struct Comparison {
  std::string output;
  std::string file;
  std::string mismatch;  // of type or shape, in which case no elements are compared
  std::int64_t count = 0;
  std::int64_t differing = 0;
  double max_absolute = 0;
  double max_relative = 0;  // over the elements whose expected value is not 0
  std::int64_t worst = -1;  // position of the largest absolute error; -1: all elements are equal
  Sizes worst_index;        // the same position, one index for each axis

  bool equal() const { return mismatch.empty() && differing == 0; }
};

/// Compares two tensors. Floating-point elements are equal if |actual - expected| <= absolute +
/// relative * |expected|, if both are NaN, or if both are the same infinity. Integers and booleans
/// must be identical. Sets all members of the result except `output` and `file`.
Comparison compare(const Tensor& actual, const Tensor& expected, const Tolerance& tolerance);

}  // namespace cudarelu::cli

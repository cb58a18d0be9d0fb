// Outputs held against what they should be.
#pragma once

#include <cstdint>
#include <string>

#include "tensor.h"

namespace cudarelu::cli {

struct Tolerance {
  double relative = 1e-3;
  double absolute = 1e-5;
};

struct Comparison {
  std::string output;
  std::string file;
  std::string mismatch;  // of type or shape: no elements are compared then
  std::int64_t count = 0;
  std::int64_t differing = 0;
  double max_absolute = 0;
  double max_relative = 0;  // over the elements that should not be 0
  std::int64_t worst = -1;  // where the largest absolute error is; -1: there is none
  Sizes worst_index;        // the same, by axis

  bool equal() const { return mismatch.empty() && differing == 0; }
};

/// Real numbers are equal where |actual - expected| <= absolute + relative * |expected|, or both
/// are NaN, or the same infinity; integers and truth values where they are the same. Sets all but
/// the names.
Comparison compare(const Tensor& actual, const Tensor& expected, const Tolerance& tolerance);

}  // namespace cudarelu::cli

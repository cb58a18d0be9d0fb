// The arguments of cuBLASLt for a product, determined once for each shape.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "cudarelu/detail/status.h"
#include "cudarelu/gemm.h"

namespace cudarelu::gpu::lt {

/// Everything that the choice of an algorithm depends on. Alignments are powers of two, in bytes.
struct ProblemKey {
  std::int32_t m;
  std::int32_t n;
  std::int32_t k;
  std::int32_t batch;
  std::int32_t device;
  cublasLtEpilogue_t epilogue;
  DType dtype;
  bool a_transposed;
  bool b_transposed;
  bool tf32;
  bool workspace;  // whether it is available
  std::uint8_t a_alignment;
  std::uint8_t b_alignment;
  std::uint8_t rest_alignment;  // of all other operands

  bool operator==(const ProblemKey&) const = default;
};
static_assert(std::has_unique_object_representations_v<ProblemKey>);  // the hash is of its bytes

/// Whether all operands and all of their rows are aligned to 16 bytes.
bool is_aligned(const ProblemKey& key);

/// An algorithm, if one is found.
struct Algorithm {
  bool found = false;
  bool measured = false;  // the fastest of several, as measured
  bool splits_k = false;  // and adds up the parts in another kernel
  cublasLtMatmulAlgo_t algo{};
  std::size_t workspace = 0;  // bytes
};

/// An algorithm and the descriptors of its operands: all that a call needs except the pointers.
struct MatmulPlan {
  Algorithm algorithm;
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{};
  cublasLtMatrixLayoutOpaque_t b{};
  cublasLtMatrixLayoutOpaque_t d{};
};

/// The plan for a key. It belongs to the calling thread, which may set the pointers of a call in
/// it, and is valid until the next call of this function.
MatmulPlan& plan_for(const ProblemKey& key, const Gemm& gemm);

/// Sets the pointers of the epilogue in a plan.
bool set_pointers(MatmulPlan& plan, const ProblemKey& key, const Gemm& gemm);

/// Up to `count` algorithms from cuBLASLt's heuristics, the one expected to be fastest first. In 16
/// bits, the sum of the parts of k is not rounded before a bias is added.
std::vector<Algorithm> ask_heuristics(MatmulPlan& plan, const ProblemKey& key, int count);

/// The algorithm of the process for a key.
Algorithm known_algorithm(const ProblemKey& key);

/// Makes a measured algorithm the one of the process, and writes it to the file for the device's
/// model.
Status record_algorithm(const ProblemKey& key, const Algorithm& algorithm);

/// The handle of the device, which must be current.
cublasStatus_t handle_of(int device, cublasLtHandle_t& handle);

}  // namespace cudarelu::gpu::lt

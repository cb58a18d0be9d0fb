// What cuBLASLt needs to be told for a product, found once for each shape.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "cudarelu/gemm.h"
#include "cudarelu/status.h"

namespace cudarelu::cuda::lt {

/// All that the choice of an algorithm depends on. Alignments are powers of two, in bytes.
struct Key {
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
  bool workspace;  // whether there is some to be had
  std::uint8_t a_alignment;
  std::uint8_t b_alignment;
  std::uint8_t rest_alignment;  // of the other operands together

  bool operator==(const Key&) const = default;
};
static_assert(std::has_unique_object_representations_v<Key>);  // it is hashed as bytes

/// An algorithm, or that there is none.
struct Choice {
  bool found = false;
  bool measured = false;  // it was the fastest of some
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace = 0;  // bytes
};

/// A choice with the descriptors of its operands: all that a call needs but the pointers.
struct Plan {
  Choice choice;
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{};
  cublasLtMatrixLayoutOpaque_t b{};
  cublasLtMatrixLayoutOpaque_t d{};
};

/// The plan for a key, of the calling thread, which may put the pointers of a call in it. The next
/// call of this function may end its life.
Plan& plan_for(const Key& key, const Gemm& gemm);

/// Puts the pointers of the epilogue in a plan.
bool set_pointers(Plan& plan, const Key& key, const Gemm& gemm);

/// The first of cuBLASLt's algorithms by its heuristics, the best in their eyes first.
std::vector<Choice> ask_heuristics(Plan& plan, const Key& key, int count);

/// The process's choice for a key.
Choice known_choice(const Key& key);

/// Makes a measured choice the process's, and keeps it in the file for the device's model.
Status record_choice(const Key& key, const Choice& choice);

/// The handle of the device, which is current.
cublasStatus_t handle_of(int device, cublasLtHandle_t& handle);

}  // namespace cudarelu::cuda::lt

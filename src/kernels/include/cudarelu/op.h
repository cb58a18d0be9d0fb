// The declaration of an op and the table of all ops.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cudarelu/dtype.h"
#include "cudarelu/signature.h"
#include "cudarelu/status.h"

namespace cudarelu {

struct Call;

struct OnnxName {
  std::string_view domain;
  std::string_view op_type;
};

/// How PyTorch's autocast converts an op's inputs of float32 and half precision.
enum class Autocast : std::uint8_t {
  promote,  // all become float32 if one of them is
  float32,  // all become float32: the op sums many numbers
  lower,    // all become autocast's dtype of half precision: the op is a matrix product
};

/// The declaration of an op, which every runtime reads.
struct OpSpec {
  std::string_view signature;      // names, dtypes, shapes, attributes: see signature.h
  std::string_view summary;        // one line for a reader
  DTypeSet dtypes;                 // what T may be
  std::string_view in_place = {};  // "y = x": output y may overwrite input x
  std::string_view gradient = {};  // "x = relu_backward(grad_y, y); ...": see gradient.h
  Autocast autocast = Autocast::promote;
  OnnxName onnx_alias = {};           // a second name under which models call the op
  std::string_view definition;        // the meaning: the body of an ONNX function of opset 18
  std::string_view written_out = {};  // the same in simpler operators, as models may contain it
};

using Kernel = Status (*)(const Call&);

/// An entry of the table.
struct Op {
  std::string_view name;
  std::string onnx_type;  // the op type in the ONNX domain "cudarelu": the name in CamelCase
  OpSpec spec;
  Signature signature;
  bool elementwise = false;  // element i of each output is a function of elements i of the inputs
  bool uses_gemm = false;    // a matrix product; on the CPU it calls Execution::gemm()
  int in_place_input = -1;   // the input that an output may overwrite; -1: none
  int in_place_output = -1;
  Kernel cpu = nullptr;
  Kernel cuda = nullptr;
};

/// The domain and the version of the ops in ONNX models.
inline constexpr std::string_view onnx_domain = "cudarelu";
inline constexpr int onnx_domain_version = 1;

/// The opset of ONNX that the definitions are written in.
inline constexpr int definition_opset = 18;

/// All ops; the position of an op is its id and never changes.
std::span<const Op> op_table();

/// The op of that name, or nullptr.
const Op* find_op(std::string_view name, std::span<const Op> table = op_table());

/// Throws std::invalid_argument, with the name of the op, if two ops have the same ONNX type, T has
/// no dtypes or a gradient is malformed. op_table() checks all ops.
void check_table(std::span<const Op> table);

/// Whether the CUDA kernels were compiled in.
bool has_cuda_kernels();

/// Why matrix products on CUDA cannot use cuBLASLt, and how to fix it; empty if they can.
std::string cublaslt_problem();

}  // namespace cudarelu

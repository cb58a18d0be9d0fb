#include <vector>

#include "cpu/gemm.h"
#include "cuda/gemm/gemm.h"
#include "ops/list.h"

namespace cudarelu {
namespace {

std::string camel_case(std::string_view name) {
  std::string result;
  bool upper = true;
  for (const char c : name) {
    if (c == '_') {
      upper = true;
    } else {
      result += upper && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
      upper = false;
    }
  }
  return result;
}

template <class F>
Op entry() {
  static constexpr Signature signature = parse_signature(F::spec.signature);
  Op op{.name = signature.name,
        .onnx_type = camel_case(signature.name),
        .spec = F::spec,
        .signature = signature};
  constexpr std::string_view in_place = F::spec.in_place;
  if constexpr (!in_place.empty()) {
    constexpr std::size_t middle = in_place.find(" = ");
    static_assert(middle != in_place.npos, "in_place must be `output = input`");
    constexpr int output = index_of(signature.outputs, in_place.substr(0, middle));
    constexpr int input = index_of(signature.inputs, in_place.substr(middle + 3));
    static_assert(output >= 0 && input >= 0, "in_place names no output or no input");
    op.in_place_output = output;
    op.in_place_input = input;
  }
  if constexpr (requires(const Call& call) { F::gemm(call); }) {
    op.cpu = [](const Call& call) { return cpu::gemm(call, F::gemm(call)); };
    op.uses_gemm = true;
  } else if constexpr (requires(const Call& call) { F::cpu(call); }) {
    op.cpu = F::cpu;
  } else {
    op.cpu = pointwise_cpu<F>;
    op.elementwise = pointwise::row_inputs<F> == 0;
  }
#ifdef CUDARELU_WITH_CUDA
  if constexpr (requires(const Call& call) { F::gemm(call); }) {
    op.cuda = [](const Call& call) { return cuda::gemm(call, F::gemm(call)); };
  } else if constexpr (requires(const Call& call) { F::cuda(call); }) {
    op.cuda = F::cuda;
  } else {
    op.cuda = pointwise_cuda<F>;
  }
#endif
  return op;
}

template <class... F>
std::vector<Op> entries(ops::List<F...> /*all*/) {
  return {entry<F>()...};
}

}  // namespace

std::span<const Op> op_table() {
  static const std::vector<Op> table = entries(ops::All{});
  return table;
}

const Op* find_op(std::string_view name) {
  for (const Op& op : op_table()) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

bool has_cuda_kernels() {
#ifdef CUDARELU_WITH_CUDA
  return true;
#else
  return false;
#endif
}

}  // namespace cudarelu

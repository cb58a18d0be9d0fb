#include <algorithm>
#include <stdexcept>
#include <vector>

#include "cpu/gemm.h"
#include "cuda/gemm/gemm.h"
#include "cudarelu/gradient.h"
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
  if constexpr (!F::spec.in_place.empty()) {
    constexpr InPlace in_place = parse_in_place(signature, F::spec.in_place);
    op.in_place_output = in_place.output;
    op.in_place_input = in_place.input;
  }
  if constexpr (requires(const Call& call) { F::gemm(call); }) {
    op.cpu = [](const Call& call) { return cpu::gemm(call, F::gemm(call)); };
    op.uses_gemm = true;
  } else if constexpr (requires(const Call& call) { F::cpu(call); }) {
    op.cpu = F::cpu;
  } else {
    static_assert(signature.is_pointwise(),
                  "an op without kernels of its own is elementwise: all tensors are of type T, "
                  "there is one output, and each input is required and has the output's shape, or "
                  "its last dimension");
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
  static const std::vector<Op> table = [] {
    std::vector<Op> all = entries(ops::All{});
    check_table(all);
    return all;
  }();
  return table;
}

const Op* find_op(std::string_view name, std::span<const Op> table) {
  for (const Op& op : table) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

void check_table(std::span<const Op> table) {
  for (const Op& op : table) {
    const std::string name(op.name);
    const Op& same = *std::ranges::find(table, op.onnx_type, &Op::onnx_type);
    if (&same != &op) {
      throw std::invalid_argument(name + ": " + std::string(same.name) + " has the ONNX type " +
                                  op.onnx_type + " too");
    }
    const bool generic = std::ranges::any_of(op.signature.inputs, [](const Parameter& input) {
      return input.kind == ElementKind::type_variable;
    });
    if (generic && op.spec.dtypes.bits == 0)
      throw std::invalid_argument(name + ": T has no dtypes");
    parse_gradient(op, table);
  }
}

bool has_cuda_kernels() {
#ifdef CUDARELU_WITH_CUDA
  return true;
#else
  return false;
#endif
}

}  // namespace cudarelu

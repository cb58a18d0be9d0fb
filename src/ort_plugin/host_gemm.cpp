#include "host_gemm.h"

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "element_type.h"

namespace cudarelu::ort {
namespace {

std::size_t index_of(bool a_transposed, bool b_transposed) {
  return (a_transposed ? 2 : 0) + (b_transposed ? 1 : 0);
}

}  // namespace

HostGemm::HostGemm(const OrtApi& api, const OrtKernelInfo& node, DType dtype) : api_(api) {
  OrtMemoryInfo* memory = nullptr;
  check(api.CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  memory_ = {memory, {&api}};
  const auto attribute = [&](const char* name, auto value) {
    constexpr auto kind = std::is_integral_v<decltype(value)> ? ORT_OP_ATTR_INT : ORT_OP_ATTR_FLOAT;
    OrtOpAttr* result = nullptr;
    check(api.CreateOpAttr(name, &value, 1, kind, &result));
    return Owned<OrtOpAttr>(result, {&api});
  };
  const auto make = [&](const char* name, std::span<const OrtOpAttr* const> attributes,
                        int input_count) {
    constexpr int opset = 13;
    const char* constraint = "T";
    const ONNXTensorElementDataType type = element_types[dtype];
    OrtOp* op = nullptr;
    check(api.CreateOp(&node, name, "", opset, &constraint, &type, 1, attributes.data(),
                       static_cast<int>(attributes.size()), input_count, 1, &op));
    return Owned<OrtOp>(op, {&api});
  };
  matmul_ = make("MatMul", {}, 2);
  // CreateOp does not apply default values, so all attributes are set.
  const auto alpha = attribute("alpha", 1.0f);
  const auto beta = attribute("beta", 1.0f);
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      const auto a = attribute("transA", std::int64_t{a_transposed});
      const auto b = attribute("transB", std::int64_t{b_transposed});
      gemms_[index_of(a_transposed, b_transposed)] = make(
          "Gemm", std::array<const OrtOpAttr*, 4>{alpha.get(), beta.get(), a.get(), b.get()}, 3);
    }
  }
}

Owned<OrtValue> HostGemm::tensor(DType dtype, const void* data,
                                 std::span<const std::int64_t> shape) const {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  OrtValue* value = nullptr;
  check(api_.CreateTensorWithDataAsOrtValue(memory_.get(), const_cast<void*>(data), bytes,
                                            shape.data(), shape.size(), element_types[dtype],
                                            &value));
  return {value, {&api_}};
}

void HostGemm::operator()(const OrtKernelContext& context, const Gemm& gemm) const {
  const bool plain = !gemm.a_transposed && !gemm.b_transposed && gemm.bias == nullptr;
  if (plain && gemm.batch > 1) return invoke(context, *matmul_, gemm, {&gemm.batch, 1});
  const OrtOp& op = *gemms_[index_of(gemm.a_transposed, gemm.b_transposed)];
  const auto advance = [&](const void* matrices, std::int64_t size) {
    return static_cast<const char*>(matrices) +
           static_cast<std::size_t>(size) * size_of(gemm.dtype);
  };
  Gemm one = gemm;
  for (std::int64_t i = 0; i < gemm.batch; ++i) {
    invoke(context, op, one, {});
    one.a = advance(one.a, gemm.m * gemm.k);
    one.b = advance(one.b, gemm.k * gemm.n);
    one.d = const_cast<char*>(advance(one.d, gemm.m * gemm.n));
  }
}

void HostGemm::invoke(const OrtKernelContext& context, const OrtOp& op, const Gemm& gemm,
                      std::span<const std::int64_t> batch) const {
  const auto matrices = [&](const void* data, std::int64_t rows, std::int64_t columns,
                            bool transposed) {
    std::vector<std::int64_t> shape(batch.begin(), batch.end());
    shape.push_back(transposed ? columns : rows);
    shape.push_back(transposed ? rows : columns);
    return tensor(gemm.dtype, data, shape);
  };
  const auto a = matrices(gemm.a, gemm.m, gemm.k, gemm.a_transposed);
  const auto b = matrices(gemm.b, gemm.k, gemm.n, gemm.b_transposed);
  const auto d = matrices(gemm.d, gemm.m, gemm.n, false);
  const auto bias =
      gemm.bias == nullptr ? Owned<OrtValue>() : tensor(gemm.dtype, gemm.bias, {&gemm.n, 1});
  const std::array<const OrtValue*, 3> inputs{a.get(), b.get(), bias.get()};
  const std::array<OrtValue*, 1> outputs{d.get()};
  check(
      api_.InvokeOp(&context, &op, inputs.data(), &op == matmul_.get() ? 2 : 3, outputs.data(), 1));
}

}  // namespace cudarelu::ort

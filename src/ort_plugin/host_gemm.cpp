#include "host_gemm.h"

#include <algorithm>
#include <cstdint>
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
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      ops_[index_of(a_transposed, b_transposed)] = make(node, dtype, a_transposed, b_transposed);
    }
  }
}

/// MatMul takes batches, but no transposed matrices; Gemm the other way round.
HostGemm::Owned<OrtOp> HostGemm::make(const OrtKernelInfo& node, DType dtype, bool a_transposed,
                                      bool b_transposed) const {
  constexpr int opset = 13;
  const char* const constraint = "T";
  const ONNXTensorElementDataType type = onnx_type_of(dtype);
  const auto attribute = [&](const char* name, const void* value, OrtOpAttrType kind) {
    OrtOpAttr* result = nullptr;
    check(api_.CreateOpAttr(name, value, 1, kind, &result));
    return Owned<OrtOpAttr>(result, {&api_});
  };
  OrtOp* op = nullptr;
  if (!a_transposed && !b_transposed) {
    check(api_.CreateOp(&node, "MatMul", "", opset, const_cast<const char**>(&constraint), &type, 1,
                        nullptr, 0, 2, 1, &op));
  } else {
    // No attribute has its default here.
    constexpr float one = 1;
    const auto integer = [&](const char* name, std::int64_t value) {
      return attribute(name, &value, ORT_OP_ATTR_INT);
    };
    const auto real = [&](const char* name) { return attribute(name, &one, ORT_OP_ATTR_FLOAT); };
    const std::array<Owned<OrtOpAttr>, 4> owned{integer("transA", a_transposed ? 1 : 0),
                                                integer("transB", b_transposed ? 1 : 0),
                                                real("alpha"), real("beta")};
    std::array<const OrtOpAttr*, owned.size()> attributes{};
    std::ranges::transform(owned, attributes.begin(), [](const auto& each) { return each.get(); });
    check(api_.CreateOp(&node, "Gemm", "", opset, const_cast<const char**>(&constraint), &type, 1,
                        attributes.data(), attributes.size(), 2, 1, &op));
  }
  return {op, {&api_}};
}

HostGemm::Owned<OrtValue> HostGemm::tensor(DType dtype, void* data,
                                           std::span<const std::int64_t> shape) const {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  OrtValue* value = nullptr;
  check(api_.CreateTensorWithDataAsOrtValue(memory_.get(), data, bytes, shape.data(), shape.size(),
                                            onnx_type_of(dtype), &value));
  return {value, {&api_}};
}

void HostGemm::operator()(const OrtKernelContext& context, const Gemm& gemm) const {
  const OrtOp& op = *ops_[index_of(gemm.a_transposed, gemm.b_transposed)];
  if (!gemm.a_transposed && !gemm.b_transposed) {
    return invoke(context, op, gemm, {&gemm.batch, gemm.batch > 1 ? std::size_t{1} : 0});
  }
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
    return tensor(gemm.dtype, const_cast<void*>(data), shape);
  };
  const auto a = matrices(gemm.a, gemm.m, gemm.k, gemm.a_transposed);
  const auto b = matrices(gemm.b, gemm.k, gemm.n, gemm.b_transposed);
  const auto d = matrices(gemm.d, gemm.m, gemm.n, false);
  const std::array<const OrtValue*, 2> inputs{a.get(), b.get()};
  const std::array<OrtValue*, 1> outputs{d.get()};
  check(api_.InvokeOp(&context, &op, inputs.data(), 2, outputs.data(), 1));
}

}  // namespace cudarelu::ort

#include "shape_inference.h"

#include <array>
#include <cstdint>
#include <vector>

#include "attributes.h"
#include "cudarelu/infer.h"
#include "custom_op.h"
#include "element_type.h"
#include "tensor.h"

namespace cudarelu::ort {
namespace {

/// Returns an input, or nothing if its element type or rank is unknown.
std::optional<SymbolicTensor> input(const OrtApi& api, const OrtShapeInferContext& context,
                                    std::size_t index, const Parameter& parameter) {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // owned by the context
  check(api.ShapeInferContext_GetInputTypeShape(&context, index, &info));
  ONNXTensorElementDataType type{};
  check(api.GetTensorElementType(info, &type));
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) return SymbolicTensor{};  // absent
  std::size_t rank = 0;
  check(api.GetDimensionsCount(info, &rank));
  const std::optional<DType> dtype = element_types.find(type);
  // Rank 0 means a scalar or an unknown rank; of a declared scalar, the kernel checks it.
  const bool is_scalar = parameter.dims.empty() && !parameter.has_star();
  if (!dtype || (rank == 0 && !is_scalar)) return std::nullopt;

  std::vector<std::int64_t> numbers(rank);
  std::vector<const char*> symbols(rank);
  check(api.GetDimensions(info, numbers.data(), rank));
  check(api.GetSymbolicDimensions(info, symbols.data(), rank));
  SymbolicTensor tensor{true, *dtype, std::vector<SymbolicSize>(rank)};
  for (std::size_t i = 0; i < rank; ++i) {
    tensor.shape[i].number = numbers[i];
    tensor.shape[i].symbol = symbols[i];
  }
  return tensor;
}

void set_output(const OrtApi& api, OrtShapeInferContext& context, std::size_t index,
                const OutputType<SymbolicSize>& type) {
  std::vector<std::int64_t> numbers;
  std::vector<const char*> symbols;
  for (const SymbolicSize& size : type.shape.span()) {
    // ONNX Runtime would treat unknown sizes as equal, and share memory between tensors.
    if (size.unknown()) return;
    numbers.push_back(size.number);
    symbols.push_back(size.symbol.c_str());
  }
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api.CreateTensorTypeAndShapeInfo(&info));
  const TypeInfo owner(info, api.ReleaseTensorTypeAndShapeInfo);
  check(api.SetTensorElementType(info, element_types[type.dtype]));
  check(api.SetDimensions(info, numbers.data(), numbers.size()));
  check(api.SetSymbolicDimensions(info, symbols.data(), symbols.size()));
  check(api.ShapeInferContext_SetOutputTypeShape(&context, index, info));
}

void infer_outputs(const CustomOp& custom_op, OrtShapeInferContext& context) {
  const OrtApi& api = *custom_op.runtime.api;
  const Signature& signature = custom_op.op.signature;
  std::size_t count = 0;
  check(api.ShapeInferContext_GetInputCount(&context, &count));
  std::vector<SymbolicTensor> inputs(signature.inputs.size());
  for (std::size_t i = 0; i < std::min(count, custom_op.inputs.size()); ++i) {
    const auto [is_attribute, index] = custom_op.inputs[i];
    if (is_attribute) continue;
    const std::optional<SymbolicTensor> tensor = input(api, context, i, signature.inputs[index]);
    if (!tensor) return;
    inputs[index] = *tensor;
  }
  const auto attributes = read_attributes(api, context, custom_op);
  if (!attributes) return;
  std::array<OutputType<SymbolicSize>, max_outputs> outputs;
  // Without a check of the attributes, which the kernel makes: those that are inputs are unknown.
  const Status status = infer_tensors<SymbolicSize>(
      custom_op.op, std::span<const SymbolicTensor>(inputs), *attributes, std::span(outputs));
  if (!status.ok()) return;
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    set_output(api, context, i, outputs[i]);
  }
}

}  // namespace

OrtStatus* infer_shapes(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const CustomOp& custom_op = *static_cast<const CustomOp*>(op);
  const OrtApi& api = *custom_op.runtime.api;
  succeeded(api, guarded(api, [&] { infer_outputs(custom_op, *context); }));
  return nullptr;
}

}  // namespace cudarelu::ort

#include "kernel.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absent_inputs.h"
#include "attributes.h"
#include "cudarelu/infer.h"
#include "element_type.h"
#include "execution.h"
#include "tensor.h"

namespace cudarelu::ort {
namespace {

/// Uninitialized storage for the tensors of a call: to clear it would dominate the cost of a small
/// call.
template <std::size_t n>
union Tensors {
  Tensors() {}  // NOLINT: the elements are constructed later

  std::array<TensorView, n> views;
};

/// Whether all tensors have the same shape, of a supported rank.
bool have_one_shape(std::span<const TensorView> tensors) {
  const std::span<const std::int64_t> first = tensors[0].shape;
  return first.size() <= max_rank &&
         std::ranges::all_of(tensors.subspan(1), [&](const TensorView& tensor) {
           return std::ranges::equal(tensor.shape, first);
         });
}

/// The dtype of an input that may have several: its type in the kernel's declaration is any.
DType read_dtype(const OrtApi& api, const Op& op, const Parameter& input, const OrtValue& value) {
  ONNXTensorElementDataType type{};
  check(api.GetTensorElementType(type_info(api, value).get(), &type));
  if (const std::optional<DType> dtype = element_types.find(type)) return *dtype;
  fail(Status::Code::unsupported_dtype, op,
       std::string(input.name) +
           " has an unsupported dtype; supported: " + names_of(dtypes_of(op, input)));
}

/// An output has the dtype that an attribute chooses, unless the runtime needs a fixed one.
void check_chosen_dtypes(const CustomOp& custom_op, std::span<const Attribute> attributes) {
  const Signature& signature = custom_op.op.signature;
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    const ElementType& type = signature.outputs[i].type;
    const std::optional<DType>& fixed = custom_op.types.outputs[i];
    if (type.kind != ElementType::Kind::attribute || !fixed) continue;
    const AttributeSpec& choice = signature.attributes[type.index];
    const DType chosen = choice.dtype_at(std::get<std::int64_t>(attributes[type.index]));
    if (chosen == *fixed) continue;
    fail(Status::Code::unavailable, custom_op.op,
         std::string(choice.name) + " is " + std::string(name_of(chosen)) +
             ", but ONNX Runtime before 1.23 supports " + std::string(name_of(*fixed)) + " alone");
  }
}

}  // namespace

Kernel::Kernel(const CustomOp& custom_op, const OrtApi& api, const OrtKernelInfo& node)
    : custom_op_(custom_op),
      api_(api),
      attributes_(read_attributes(api, node, custom_op)),
      absent_inputs_(find_absent_inputs(api, node, custom_op)) {
  check_chosen_dtypes(custom_op, attributes_);
  if (!custom_op.op.uses_gemm || custom_op.device != DeviceType::cpu) return;
  const bool is_double = custom_op.types.variables[0] == DType::float64;
  gemm_.emplace(api, node, is_double ? DType::float64 : DType::float32);
}

void Kernel::compute(OrtKernelContext& context) const {
  const Op& op = custom_op_.op;
  const Signature& signature = op.signature;
  std::size_t count = custom_op_.inputs.size();
  // ONNX Runtime does not count absent inputs at the end; absent ones in the middle are null.
  if (!custom_op_.op.uniform) check(api_.KernelContext_GetInputCount(&context, &count));

  Tensors<max_inputs> room_for_inputs;
  auto& input_views = room_for_inputs.views;
  std::array<ShapeStorage, max_inputs> shapes;
  std::vector<Attribute> given;  // the attributes, if inputs change some of them
  if (custom_op_.has_attribute_inputs) given = attributes_;
  const OrtValue* located = nullptr;  // any tensor of the op: all are on the call's device
  for (std::size_t i = 0; i < custom_op_.inputs.size(); ++i) {
    const OrtValue* value = nullptr;
    if (i < count) check(api_.KernelContext_GetInput(&context, i, &value));
    const auto [is_attribute, index] = custom_op_.inputs[i];
    if (is_attribute) {
      given[index] = read_attribute(api_, op, signature.attributes[index], value);
      continue;
    }
    if (value == nullptr || (absent_inputs_ >> index & 1) != 0) {
      std::construct_at(&input_views[index])->present = false;
      continue;
    }
    located = value;
    const Parameter& input = signature.inputs[index];
    const std::optional<DType>& known = custom_op_.types.inputs[index];
    const DType dtype = known ? *known : read_dtype(api_, op, input, *value);
    std::construct_at(&input_views[index], data_of(api_, *value), dtype,
                      shape_of(custom_op_.runtime, *value, shapes[index]));
  }
  if (!given.empty()) check(check_attributes(op, given));
  const std::span<const Attribute> attributes = given.empty() ? attributes_ : given;

  const std::span<const TensorView> inputs(input_views.data(), signature.inputs.size());
  std::array<OutputType<std::int64_t>, max_outputs> types;
  // The fast path skips the general inference, which also reports errors.
  const bool one_shape = custom_op_.op.uniform && have_one_shape(inputs);
  if (!one_shape) {
    check(infer_tensors<std::int64_t>(op, inputs, attributes, std::span(types)));
  }

  Tensors<max_outputs> room_for_outputs;
  auto& output_views = room_for_outputs.views;
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    const auto shape = one_shape ? inputs[0].shape : types[i].shape.span();
    OrtValue* value = nullptr;
    check(api_.KernelContext_GetOutput(&context, i, shape.data(), shape.size(), &value));
    std::construct_at(&output_views[i], data_of(api_, *value),
                      one_shape ? custom_op_.types.variables[0] : types[i].dtype, shape);
  }

  OrtExecution execution(custom_op_, api_, context, located, gemm_ ? &*gemm_ : nullptr);
  check(run(op, inputs, std::span(output_views).first(signature.outputs.size()), attributes,
            execution));
}

}  // namespace cudarelu::ort

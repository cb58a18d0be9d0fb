#include "custom_op.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "element_type.h"
#include "kernel.h"
#include "shape_inference.h"

namespace cudarelu::ort {
namespace {

const CustomOp& of(const OrtCustomOp* self) { return *static_cast<const CustomOp*>(self); }

/// The input of the op that an input of a node is; nullptr for an attribute.
const Parameter* tensor_input(const CustomOp& custom_op, std::size_t index) {
  const NodeInput& input = custom_op.inputs[index];
  return input.is_attribute ? nullptr : &custom_op.op.signature.inputs[input.index];
}

OrtCustomOpInputOutputCharacteristic input_characteristic(const OrtCustomOp* self,
                                                          std::size_t index) {
  const Parameter* const input = tensor_input(of(self), index);
  return input != nullptr && input->optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

ONNXTensorElementDataType input_type(const OrtCustomOp* self, std::size_t index) {
  const Parameter* const input = tensor_input(of(self), index);
  // Undefined: any type, which the kernel restricts.
  if (input == nullptr || input->kind == ElementKind::variable_or_bool) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  }
  return element_types[input->dtype(of(self).variable)];
}

/// The host reads attributes, so their tensors are in its memory.
OrtMemType input_memory(const OrtCustomOp* self, std::size_t index) {
  return of(self).inputs[index].is_attribute ? OrtMemTypeCPUInput : OrtMemTypeDefault;
}

OrtStatus* create_kernel(const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo* node,
                         void** kernel) noexcept {
  return guarded(*api,
                 [&] { *kernel = std::make_unique<Kernel>(of(self), *api, *node).release(); });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  const Kernel& self = *static_cast<const Kernel*>(kernel);
  return guarded(self.api(), [&] { self.compute(*context); });
}

/// ONNX Runtime's callback for the input and output that may share memory. It gets no pointer to
/// the op, so there is one function for each possible pair.
template <int input, int output>
std::size_t may_in_place(int** inputs, int** outputs) {
  static int input_index = input;
  static int output_index = output;
  *inputs = &input_index;
  *outputs = &output_index;
  return 1;
}

constexpr std::size_t pairs_per_input = max_outputs;

template <std::size_t... pair>
constexpr auto make_may_in_place_table(std::index_sequence<pair...> /*pairs*/) {
  return std::array{
      &may_in_place<static_cast<int>(pair / pairs_per_input), pair % pairs_per_input>...};
}

constexpr auto may_in_place_table =
    make_may_in_place_table(std::make_index_sequence<max_inputs * pairs_per_input>());

/// ONNX Runtime up to 1.23 crashes on shape inference for a node that omits an input in the middle:
/// it dereferences a null pointer.
bool can_infer_shapes(const Runtime& runtime, const Op& op) {
  if (runtime.minor >= 24) return true;
  for (const Parameter& input : op.signature.inputs) {
    if (input.optional) return false;
  }
  return true;
}

}  // namespace

CustomOp::CustomOp(const Runtime& runtime, const Op& op, std::string_view onnx_type,
                   std::vector<NodeInput> node_inputs, DeviceType device, DType variable)
    : OrtCustomOp{},  // null members have a default; some belong to older API versions
      runtime(runtime),
      op(op),
      onnx_type(onnx_type),
      inputs(std::move(node_inputs)),
      has_attribute_inputs(std::ranges::any_of(inputs, &NodeInput::is_attribute)),
      device(device),
      variable(variable) {
  version = static_cast<std::uint32_t>(runtime.api_version());
  GetName = [](const OrtCustomOp* self) { return of(self).onnx_type.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp* self) {
    return of(self).device == DeviceType::cuda ? "CUDAExecutionProvider" : "CPUExecutionProvider";
  };
  GetStartVersion = [](const OrtCustomOp* self) { return of(self).op.module->onnx_version; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };

  GetInputTypeCount = [](const OrtCustomOp* self) { return of(self).inputs.size(); };
  GetInputType = input_type;
  GetInputCharacteristic = input_characteristic;
  GetInputMemoryType = input_memory;
  GetOutputTypeCount = [](const OrtCustomOp* self) { return of(self).op.signature.outputs.size(); };
  GetOutputType = [](const OrtCustomOp* self, std::size_t index) {
    return element_types[of(self).op.signature.outputs[index].dtype(of(self).variable)];
  };
  GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };

  CreateKernelV2 = create_kernel;
  KernelComputeV2 = compute;
  KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  if (can_infer_shapes(runtime, op)) InferOutputShapeFn = infer_shapes;
  if (op.in_place_input >= 0) {
    const NodeInput overwritten{false, static_cast<std::size_t>(op.in_place_input)};
    const auto input =
        static_cast<std::size_t>(std::ranges::find(inputs, overwritten) - inputs.begin());
    const auto output = static_cast<std::size_t>(op.in_place_output);
    GetMayInplace = may_in_place_table[input * pairs_per_input + output];
    ReleaseMayInplace = [](int*, int*) {};
  }
}

}  // namespace cudarelu::ort

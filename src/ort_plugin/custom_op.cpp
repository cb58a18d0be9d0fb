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

/// Undefined: any type, which the kernel restricts.
ONNXTensorElementDataType element_type(std::optional<DType> dtype) {
  return dtype ? element_types[*dtype] : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

OrtCustomOpInputOutputCharacteristic input_characteristic(const OrtCustomOp* self,
                                                          std::size_t index) {
  const Parameter* const input = tensor_input(of(self), index);
  return input != nullptr && input->optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

ONNXTensorElementDataType input_type(const OrtCustomOp* self, std::size_t index) {
  const Parameter* const input = tensor_input(of(self), index);
  if (input == nullptr) return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  return element_type(of(self).types.inputs[of(self).inputs[index].index]);
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

std::vector<TensorTypes> tensor_types(const Op& op, const Runtime& runtime) {
  const Signature& signature = op.signature;
  std::vector<TensorTypes> all(1);
  // Replaces each combination by one for each dtype of a set.
  const auto choose = [&](const auto& dtypes_of_combination, const auto& set) {
    std::vector<TensorTypes> longer;
    for (const TensorTypes& each : all) {
      const DTypeSet dtypes = dtypes_of_combination(each);
      for (const DType dtype : all_dtypes) {
        if (dtypes.contains(dtype)) set(longer.emplace_back(each), dtype);
      }
    }
    all = std::move(longer);
  };
  if (std::ranges::any_of(signature.inputs, &Parameter::is_generic)) {
    choose([&](const TensorTypes&) { return op.spec.dtypes; },
           [](TensorTypes& types, DType dtype) { types.variables[0] = dtype; });
  }
  for (std::size_t i = 0; i < signature.variables.size(); ++i) {
    choose(
        [&](const TensorTypes& types) {
          DTypeSet dtypes = signature.variables[i].dtypes;
          if (signature.variables[i].or_t) dtypes.insert(types.variables[0]);
          return dtypes;
        },
        [&](TensorTypes& types, DType dtype) { types.variables[i + 1] = dtype; });
  }
  for (const Parameter& input : signature.inputs) {
    const std::size_t index = static_cast<std::size_t>(&input - signature.inputs.begin());
    const bool determines = std::ranges::any_of(signature.outputs, [&](const Parameter& output) {
      return output.type.kind == ElementType::Kind::input && output.type.index == index;
    });
    choose(
        [&](const TensorTypes& types) {
          if (!determines) return DTypeSet::of({input.dtype(types.variables)});
          DTypeSet dtypes = input.type.dtypes;
          if (input.type.kind == ElementType::Kind::variable) {
            dtypes.insert(types.variables[input.type.index]);
          }
          return dtypes;
        },
        [&](TensorTypes& types, DType dtype) {
          const bool is_any = input.type.is_union() && !determines;
          types.inputs.push_back(is_any ? std::nullopt : std::optional(dtype));
        });
  }
  for (TensorTypes& types : all) {
    for (const Parameter& output : signature.outputs) {
      if (output.type.kind == ElementType::Kind::input) {
        types.outputs.push_back(types.inputs[output.type.index]);
      } else if (output.type.kind != ElementType::Kind::attribute) {
        types.outputs.push_back(output.dtype(types.variables));
      } else if (runtime.minor >= 23 && can_infer_shapes(runtime, op)) {
        types.outputs.emplace_back();
      } else {
        const AttributeSpec& choice = signature.attributes[output.type.index];
        types.outputs.push_back(choice.dtype_at(static_cast<std::int64_t>(choice.default_value)));
      }
    }
  }
  return all;
}

CustomOp::CustomOp(const Runtime& runtime, const Op& op, std::string_view onnx_type,
                   std::vector<NodeInput> node_inputs, DeviceType device, TensorTypes tensor_types)
    : OrtCustomOp{},  // null members have a default; some belong to older API versions
      runtime(runtime),
      op(op),
      onnx_type(onnx_type),
      inputs(std::move(node_inputs)),
      has_attribute_inputs(std::ranges::any_of(inputs, &NodeInput::is_attribute)),
      device(device),
      types(std::move(tensor_types)) {
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
    return element_type(of(self).types.outputs[index]);
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

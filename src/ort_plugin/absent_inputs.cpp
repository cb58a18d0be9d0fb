#include "absent_inputs.h"

#include <cstring>
#include <optional>

#include "cudarelu/cuda_driver.h"
#include "cudarelu/types.h"
#include "element_type.h"
#include "tensor.h"

namespace cudarelu::ort {
namespace {

/// Copies a constant, which is on the device of its node, to host memory. Returns whether it could.
bool copy_to_host(const OrtApi& api, const OrtValue& value, void* to, std::size_t bytes) {
  const OrtMemoryInfo* memory = nullptr;
  check(api.GetTensorMemoryInfo(&value, &memory));
  OrtMemoryInfoDeviceType device{};
  api.MemoryInfoGetDeviceType(memory, &device);
  const void* const from = data_of(api, value);
  if (device == OrtMemoryInfoDeviceType_CPU) {
    std::memcpy(to, from, bytes);
    return true;
  }
  auto* const copy =
      cuda_driver_function<int(void*, std::uintptr_t, std::size_t)>("cuMemcpyDtoH_v2");
  return copy != nullptr && copy(to, reinterpret_cast<std::uintptr_t>(from), bytes) == 0;
}

bool is_absent(const OrtApi& api, const OrtKernelInfo& node, std::size_t index,
               const Parameter& input) {
  if (!input.optional || input.absent != Absent::number) return false;
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(api.KernelInfoGetConstantInput_tensor(&node, index, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) return false;
  const std::optional<DType> dtype = dtype_of_one_element(api, *value);
  if (!dtype) return false;
  const Status status = visit_dtype<floating_types>(*dtype, [&]<class T>(TypeTag<T>) -> Status {
    T element;
    const bool is_number = copy_to_host(api, *value, &element, sizeof element) &&
                           static_cast<double>(load(element)) == input.number;
    return is_number ? Status() : Status(Status::Code::invalid_argument, "");
  });
  return status.ok();
}

}  // namespace

std::uint64_t find_absent_inputs(const OrtApi& api, const OrtKernelInfo& node,
                                 const CustomOp& custom_op) {
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < custom_op.inputs.size(); ++i) {
    const auto [is_attribute, index] = custom_op.inputs[i];
    if (!is_attribute && is_absent(api, node, i, custom_op.op.signature.inputs[index])) {
      found |= std::uint64_t{1} << index;
    }
  }
  return found;
}

}  // namespace cudarelu::ort

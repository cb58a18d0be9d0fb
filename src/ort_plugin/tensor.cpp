#include "tensor.h"

#include <cstdint>
#include <string>

#include "element_type.h"

namespace cudarelu::ort {

#if ORT_API_VERSION >= 24
static_assert(offsetof(OrtApi, GetTensorElementTypeAndShapeDataReference) ==
              shape_reference_slot * sizeof(ShapeReference));
#endif

std::span<const std::int64_t> copy_shape(const OrtApi& api, const OrtValue& tensor,
                                         ShapeStorage& storage) {
  std::size_t rank = 0;
  const TypeInfo info = type_info(api, tensor);
  check(api.GetDimensionsCount(info.get(), &rank));
  if (rank > max_rank) {
    throw Failure({Status::Code::invalid_argument, "a tensor has " + std::to_string(rank) +
                                                       " dimensions; cudarelu takes up to " +
                                                       std::to_string(max_rank)});
  }
  check(api.GetDimensions(info.get(), storage.data(), rank));
  return {storage.data(), rank};
}

std::optional<DType> dtype_of_one_element(const OrtApi& api, const OrtValue& value) {
  const TypeInfo info = type_info(api, value);
  ONNXTensorElementDataType type{};
  std::size_t rank = 0;
  std::size_t count = 0;
  check(api.GetTensorElementType(info.get(), &type));
  check(api.GetDimensionsCount(info.get(), &rank));
  check(api.GetTensorShapeElementCount(info.get(), &count));
  return rank <= 1 && count == 1 ? element_types.find(type) : std::nullopt;
}

}  // namespace cudarelu::ort

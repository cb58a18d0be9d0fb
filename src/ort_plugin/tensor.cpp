#include "tensor.h"

#include <cstdint>
#include <memory>
#include <string>

namespace cudarelu::ort {

#if ORT_API_VERSION >= 24
static_assert(offsetof(OrtApi, GetTensorElementTypeAndShapeDataReference) ==
              shape_reference_slot * sizeof(ShapeReference));
#endif

std::span<const std::int64_t> copy_shape(const OrtApi& api, const OrtValue& tensor,
                                         ShapeStorage& storage) {
  std::size_t rank = 0;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api.GetTensorTypeAndShape(&tensor, &info));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api.ReleaseTensorTypeAndShapeInfo)>
      owner(info, api.ReleaseTensorTypeAndShapeInfo);
  check(api.GetDimensionsCount(info, &rank));
  if (rank > max_rank) {
    fail(api, {Status::Code::invalid_argument, "a tensor has " + std::to_string(rank) +
                                                   " dimensions; cudarelu takes up to " +
                                                   std::to_string(max_rank)});
  }
  check(api.GetDimensions(info, storage.data(), rank));
  return {storage.data(), rank};
}

}  // namespace cudarelu::ort

#include "tensor.h"

#include <cstdint>
#include <memory>
#include <string>

namespace cudarelu::ort {
namespace {

/// GetTensorElementTypeAndShapeDataReference, which came with 1.24: it allocates nothing. Older
/// headers do not declare it; the table of functions only ever grows, so its place is fixed.
using ShapeReference = OrtStatus* (*)(const OrtValue*, ONNXTensorElementDataType*,
                                      const std::int64_t**, std::size_t*);
constexpr int shape_reference_since = 24;
constexpr std::size_t shape_reference_slot = 414;

ShapeReference shape_reference(const OrtApi& api) {
#if ORT_API_VERSION >= 24
  static_assert(offsetof(OrtApi, GetTensorElementTypeAndShapeDataReference) ==
                shape_reference_slot * sizeof(ShapeReference));
#endif
  return reinterpret_cast<const ShapeReference*>(&api)[shape_reference_slot];
}

}  // namespace

std::span<const std::int64_t> shape_of(const Runtime& runtime, const OrtValue& tensor,
                                       ShapeStorage& storage) {
  const OrtApi& api = *runtime.api;
  std::size_t rank = 0;
  if (runtime.minor >= shape_reference_since) {
    ONNXTensorElementDataType type{};
    const std::int64_t* dims = nullptr;
    check(shape_reference(api)(&tensor, &type, &dims, &rank));
    return {dims, rank};
  }
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

#include "tensor.h"

#include <cstdint>

#include "error.h"

namespace cudarelu::cli {

Tensor make_tensor(const ElementType& type, Sizes shape) {
  std::int64_t count = 1;
  std::int64_t bytes = 0;
  bool overflow = false;
  for (const std::int64_t size : shape) overflow |= __builtin_mul_overflow(count, size, &count);
  overflow |= __builtin_mul_overflow(count, type.size, &bytes);
  if (overflow) throw Error("a tensor's sizes overflow");
  Tensor tensor{&type, std::move(shape), count, nullptr};
  tensor.data = std::make_shared_for_overwrite<std::byte[]>(tensor.bytes());
  return tensor;
}

std::string text_of(const Tensor& tensor) {
  std::string text = std::string(tensor.type->name) + " [";
  for (const std::int64_t size : tensor.shape) {
    if (!text.ends_with('[')) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

}  // namespace cudarelu::cli

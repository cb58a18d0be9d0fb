#include "arrays/tensor.h"

#include <unistd.h>

#include <cstdint>

#include "error.h"

namespace cudarelu::cli {

std::optional<std::size_t> bytes_of(const ElementType& type, const Sizes& shape) {
  auto bytes = static_cast<std::int64_t>(type.size);
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return static_cast<std::size_t>(bytes);
}

Tensor make_tensor(const ElementType& type, Sizes shape) {
  const std::optional<std::size_t> bytes = bytes_of(type, shape);
  if (!bytes) throw Error("a tensor's sizes overflow");
  const auto count = static_cast<std::int64_t>(*bytes / type.size);
  return {&type, std::move(shape), count, std::make_shared_for_overwrite<std::byte[]>(*bytes)};
}

std::size_t max_array_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                              static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 2;

void check_size(std::size_t bytes, const std::string& label) {
  if (bytes <= max_array_bytes) return;
  throw Error(label + ": has " + std::to_string(bytes) + " bytes, and at most " +
              std::to_string(max_array_bytes) + " are allowed; --max-array MB allows more");
}

std::string text_of(const Sizes& sizes) {
  std::string text = "[";
  for (const std::int64_t size : sizes) text += (text == "[" ? "" : ", ") + std::to_string(size);
  return text + "]";
}

std::string text_of(const Tensor& tensor) {
  return std::string(tensor.type->name) + " " + text_of(tensor.shape);
}

}  // namespace cudarelu::cli

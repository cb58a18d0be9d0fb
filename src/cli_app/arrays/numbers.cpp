#include "arrays/numbers.h"

#include <cstdint>
#include <cstring>

#include "cudarelu/detail/float16.h"

namespace cudarelu::cli {
namespace {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Rounds to float16 or bfloat16, by way of float32.
template <class T>
T narrow(double value) {
  T result;
  from_float(static_cast<float>(value), result);
  return result;
}

}  // namespace

Number element(const Tensor& tensor, std::int64_t index) {
  const std::byte* at = tensor.data.get() + static_cast<std::size_t>(index) * tensor.type->size;
  const std::size_t size = tensor.type->size;
  switch (tensor.type->kind) {
    case Kind::real:
      return size == 4 ? double{load<float>(at)} : load<double>(at);
    case Kind::half:
      return to_float(load<Half>(at));
    case Kind::bfloat:
      return to_float(load<BFloat16>(at));
    case Kind::integer:
      return size == 1   ? std::int64_t{load<std::int8_t>(at)}
             : size == 2 ? std::int64_t{load<std::int16_t>(at)}
             : size == 4 ? std::int64_t{load<std::int32_t>(at)}
                         : load<std::int64_t>(at);
    case Kind::unsigned_integer:
      return size == 1   ? std::uint64_t{load<std::uint8_t>(at)}
             : size == 2 ? std::uint64_t{load<std::uint16_t>(at)}
             : size == 4 ? std::uint64_t{load<std::uint32_t>(at)}
                         : load<std::uint64_t>(at);
    case Kind::boolean:
      break;
  }
  return *at != std::byte{0};
}

void set_element(Tensor& tensor, std::int64_t index, double value) {
  std::byte* at = tensor.data.get() + static_cast<std::size_t>(index) * tensor.type->size;
  const auto store = [at](auto number) { std::memcpy(at, &number, sizeof number); };
  switch (tensor.type->kind) {
    case Kind::real:
      return tensor.type->size == 4 ? store(static_cast<float>(value)) : store(value);
    case Kind::half:
      return store(narrow<Half>(value));
    case Kind::bfloat:
      return store(narrow<BFloat16>(value));
    default:
      break;
  }
  // On a little-endian machine the low bytes come first, for signed and unsigned types.
  const auto integer = static_cast<std::int64_t>(value);
  std::memcpy(at, &integer, tensor.type->size);
}

double rounded_to(const ElementType& type, double value) {
  switch (type.kind) {
    case Kind::half:
      return to_float(narrow<Half>(value));
    case Kind::bfloat:
      return to_float(narrow<BFloat16>(value));
    default:
      return type.size == 4 ? static_cast<float>(value) : value;
  }
}

}  // namespace cudarelu::cli

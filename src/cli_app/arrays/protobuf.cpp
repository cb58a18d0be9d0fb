#include "arrays/protobuf.h"

namespace cudarelu::cli {

std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
  return std::nullopt;
}

bool Message::next() {
  if (rest_.empty() || malformed_) return false;
  const std::optional<std::uint64_t> key = take_varint(rest_);
  field_ = key.value_or(0) >> 3;
  data_ = {};
  number_ = 0;
  is_varint_ = key && (*key & 7) == 0;
  std::uint64_t size = ~std::uint64_t{0};
  switch (key.value_or(7) & 7) {
    case 0: {
      const std::optional<std::uint64_t> number = take_varint(rest_);
      malformed_ = !number;
      number_ = number.value_or(0);
      return !malformed_;
    }
    case 1:
      size = 8;
      break;
    case 2:
      size = take_varint(rest_).value_or(~std::uint64_t{0});
      break;
    case 5:
      size = 4;
      break;
    default:
      break;
  }
  malformed_ = size > rest_.size();
  if (malformed_) return false;
  data_ = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return true;
}

}  // namespace cudarelu::cli

#include "arrays/tensor_proto.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "arrays/protobuf.h"
#include "cudarelu/op.h"
#include "error.h"

namespace cudarelu::cli {
namespace {

/// Field numbers of onnx.proto.
enum : std::uint64_t {
  tensor_dims = 1,
  tensor_data_type = 2,
  tensor_float_data = 4,
  tensor_int32_data = 5,
  tensor_string_data = 6,
  tensor_int64_data = 7,
  tensor_raw_data = 9,
  tensor_double_data = 10,
  tensor_uint64_data = 11,
  tensor_data_location = 14,
};

/// Calls `take` for each number of a repeated field, packed or not. Returns false if it is
/// malformed.
template <class F>
bool each_varint(const Message& field, F take) {
  if (field.is_varint()) {
    take(field.number());
    return true;
  }
  std::string_view packed = field.data();
  while (!packed.empty()) {
    const std::optional<std::uint64_t> number = take_varint(packed);
    if (!number) return false;
    take(*number);
  }
  return true;
}

const ElementType* element_type(std::uint64_t data_type) {
  const auto* type = std::ranges::find(element_types, data_type, [](const ElementType& candidate) {
    return static_cast<std::uint64_t>(candidate.onnx);  // the same numbers as in onnx.proto
  });
  return type == element_types.end() ? nullptr : &*type;
}

struct Content {
  std::uint64_t data_type = 0;
  Sizes shape;
  std::string_view raw;        // raw_data, if present
  std::string numbers;         // of the typed fields, in their form in memory
  std::uint64_t external = 0;  // not 0: the data is in another file
  bool strings = false;
  bool valid = true;
};

Content read(std::string_view bytes) {
  Content content;
  Message message(bytes);
  while (message.next()) {
    switch (message.field()) {
      case tensor_dims:
        content.valid &= each_varint(message, [&](std::uint64_t size) {
          content.shape.push_back(static_cast<std::int64_t>(size));
        });
        break;
      case tensor_data_type:
        content.data_type = message.number();
        break;
      case tensor_float_data:
      case tensor_double_data:
        content.numbers += message.data();
        break;
      case tensor_int32_data:
      case tensor_int64_data:
      case tensor_uint64_data: {
        const ElementType* type = element_type(content.data_type);
        if (type == nullptr) break;
        content.valid &= each_varint(message, [&](std::uint64_t number) {
          content.numbers.append(reinterpret_cast<const char*>(&number), type->size);
        });
        break;
      }
      case tensor_string_data:
        content.strings = true;
        break;
      case tensor_raw_data:
        content.raw = message.data();
        break;
      case tensor_data_location:
        content.external = message.number();
        break;
      default:
        break;
    }
  }
  content.valid &= !message.malformed();
  return content;
}

}  // namespace

Tensor parse_tensor_proto(std::string_view bytes, const std::string& label) {
  const auto fail = [&](const std::string& what) -> Error { return Error(label + ": " + what); };
  const Content content = read(bytes);
  const bool negative =
      std::ranges::any_of(content.shape, [](std::int64_t size) { return size < 0; });
  if (!content.valid || negative || content.shape.size() > max_rank || content.data_type == 0) {
    throw fail("not a TensorProto, or a truncated one");
  }
  if (content.strings || content.data_type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    throw fail("a tensor of strings; ort_infer takes tensors of numbers");
  }
  const ElementType* type = element_type(content.data_type);
  if (type == nullptr) {
    throw fail("elements of ONNX's type " + std::to_string(content.data_type) +
               " are not supported");
  }
  if (content.external != 0) throw fail("its data is in another file; save it with its data");
  const std::string_view data = content.raw.empty() ? content.numbers : content.raw;
  const std::optional<std::size_t> size = bytes_of(*type, content.shape);
  if (!size || *size != data.size()) {
    throw fail("its shape does not fit its " + std::to_string(data.size()) + " bytes of data");
  }
  check_size(*size, label);
  Tensor tensor = make_tensor(*type, content.shape);
  std::ranges::copy(std::as_bytes(std::span(data)), tensor.data.get());
  return tensor;
}

}  // namespace cudarelu::cli

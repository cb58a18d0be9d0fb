// Tensors on the host, and their element types.
#pragma once

#include <onnxruntime_c_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cudarelu::cli {

enum class Kind { real, half, bfloat, integer, unsigned_integer, boolean };

struct ElementType {
  ONNXTensorElementDataType onnx;
  std::string_view name;
  std::string_view npy;  // the kind and size in a .npy file
  Kind kind;
  std::size_t size;
};

/// The element types that ONNX and NumPy share, and bfloat16, which is V2 in NumPy's files.
inline constexpr std::array element_types{
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, "float32", "f4", Kind::real, 4},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, "float64", "f8", Kind::real, 8},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, "float16", "f2", Kind::half, 2},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, "bfloat16", "V2", Kind::bfloat, 2},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, "int8", "i1", Kind::integer, 1},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, "int16", "i2", Kind::integer, 2},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, "int32", "i4", Kind::integer, 4},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, "int64", "i8", Kind::integer, 8},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, "uint8", "u1", Kind::unsigned_integer, 1},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, "uint16", "u2", Kind::unsigned_integer, 2},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, "uint32", "u4", Kind::unsigned_integer, 4},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, "uint64", "u8", Kind::unsigned_integer, 8},
    ElementType{ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, "bool", "b1", Kind::boolean, 1}};

using Sizes = std::vector<std::int64_t>;

/// A dense row-major tensor. `data` owns the memory, or the object that contains it.
struct Tensor {
  const ElementType* type = nullptr;
  Sizes shape;
  std::int64_t count = 0;  // number of elements
  std::shared_ptr<std::byte[]> data;

  std::size_t bytes() const { return static_cast<std::size_t>(count) * type->size; }
};

/// Returns the size of a tensor in bytes, or nothing if it overflows.
std::optional<std::size_t> bytes_of(const ElementType& type, const Sizes& shape);

/// Allocates an uninitialized tensor. Throws an Error if its size overflows.
Tensor make_tensor(const ElementType& type, Sizes shape);

/// The most bytes of one input or expected output: half of the machine's memory, or --max-array.
extern std::size_t max_array_bytes;

/// Throws an Error that begins with `label` if an array of this size is not allowed.
void check_size(std::size_t bytes, const std::string& label);

/// Describes a shape or the indices of an element: "[2, 3]".
std::string text_of(const Sizes& sizes);

/// Describes the type and shape: "float32 [2, 3]".
std::string text_of(const Tensor& tensor);

}  // namespace cudarelu::cli

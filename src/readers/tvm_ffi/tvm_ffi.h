// The part of tvm-ffi's interface in C that the reader uses: the memory layout of version 0.1.
// These are structs of tvm/ffi/c_api.h and dlpack/dlpack.h, which the package apache-tvm-ffi
// contains; declared here, so that a build does not need the package. tests/python/tvm compares
// them with the headers of the installed package.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cudarelu::tvm_ffi {

/// DLDevice
struct Device {
  std::int32_t type;  // 1: the CPU, 2: CUDA
  std::int32_t index;

  bool operator==(const Device&) const = default;
};

/// DLDataType
struct ElementType {
  std::uint8_t code;  // 0: signed, 1: unsigned, 2: floating-point, 4: bfloat
  std::uint8_t bits;
  std::uint16_t lanes;

  bool operator==(const ElementType&) const = default;
};

/// DLTensor
struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  ElementType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: dense, in row-major order
  std::uint64_t byte_offset;
};

/// What an object begins with. A Tensor or Text follows, as the type says.
struct Object {
  std::uint64_t references;
  std::int32_t type;
  std::uint32_t padding;
  void (*deleter)(void*, int);
};

struct Text {
  const char* data;
  std::size_t size;
};

enum class Type : std::int32_t {
  none = 0,
  integer = 1,
  boolean = 2,
  real = 3,
  tensor_pointer = 7,
  text_pointer = 8,
  small_text = 11,
  text = 65,
  tensor = 70,
  big_integer = 78,
};

/// An argument or a result.
struct Any {
  Type type;
  std::uint32_t small_size;  // of a small text
  union {
    std::int64_t integer;
    double real;
    void* pointer;
    const char* c_text;
    Object* object;
    char small[8];
  };
};

}  // namespace cudarelu::tvm_ffi

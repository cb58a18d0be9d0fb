// The part of XLA's foreign function interface that the handler uses: the memory layout of version
// 0.1, which XLA keeps compatible. These are the structs of xla/ffi/api/c_api.h, which jaxlib
// contains; declared here, since that header renames types between releases, and so that a build
// does not need jaxlib. tests/python/jax compares them with jaxlib's header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cudarelu::xla {

struct Api;
struct Context;  // of a call
struct Error;    // owned by who receives it

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extension_start;
  int major;
  int minor;
};

/// What XLA asks a handler about itself, in a call without arguments.
struct Metadata {
  static constexpr std::uint32_t can_be_captured = 1;  // into a CUDA graph
  std::size_t struct_size;
  Version api_version;
  std::uint32_t traits;
};
struct MetadataExtension {
  static constexpr int type = 1;
  Extension base;
  Metadata* metadata;
};

struct Text {
  const char* data;
  std::size_t size;
};

/// The type of an array's elements and of a number.
enum class Type : int {
  pred = 1,
  s8 = 2,
  s32 = 4,
  s64 = 5,
  u8 = 6,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16
};

struct Buffer {
  std::size_t struct_size;
  Extension* extension_start;
  Type dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct Number {
  Type dtype;
  void* value;
};

/// Arguments or results: all are buffers.
struct Buffers {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t size;
  int* types;
  Buffer** buffers;
};

enum class AttributeKind : int { array = 1, dictionary = 2, number = 3, text = 4 };

struct Attributes {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t size;
  AttributeKind* kinds;
  Text** names;
  void** values;  // a Number* or a Text*, as the kind says
};

enum class Stage : int { instantiate, prepare, initialize, execute };

struct CallFrame {
  std::size_t struct_size;
  Extension* extension_start;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

/// What the functions of the API take: in part, what they return.
struct ErrorArguments {
  std::size_t struct_size = sizeof(ErrorArguments);
  Extension* extension_start = nullptr;
  const char* message = nullptr;
  int code = 0;  // of Abseil's statuses
};
struct DestroyArguments {
  std::size_t struct_size = sizeof(DestroyArguments);
  Extension* extension_start = nullptr;
  Error* error = nullptr;
};
struct StreamArguments {
  std::size_t struct_size = sizeof(StreamArguments);
  Extension* extension_start = nullptr;
  Context* context = nullptr;
  void* stream = nullptr;
};
struct AllocateArguments {
  std::size_t struct_size = sizeof(AllocateArguments);
  Extension* extension_start = nullptr;
  Context* context = nullptr;
  std::size_t size = 0;
  std::size_t alignment = 1;
  void* data = nullptr;
};
struct FreeArguments {
  std::size_t struct_size = sizeof(FreeArguments);
  Extension* extension_start = nullptr;
  Context* context = nullptr;
  std::size_t size = 0;
  void* data = nullptr;
};
struct ScheduleArguments {
  std::size_t struct_size = sizeof(ScheduleArguments);
  Extension* extension_start = nullptr;
  Context* context = nullptr;
  void (*task)(void*) = nullptr;
  void* data = nullptr;
};
struct ThreadCountArguments {
  std::size_t struct_size = sizeof(ThreadCountArguments);
  Extension* extension_start = nullptr;
  Context* context = nullptr;
  std::int64_t* count = nullptr;
};
struct DeviceArguments {
  std::size_t struct_size = sizeof(DeviceArguments);
  Extension* extension_start = nullptr;
  Context* context = nullptr;
  std::int32_t device = 0;
};

/// How XLA destroys the state of a call.
struct TypeInfo {
  std::size_t struct_size = sizeof(TypeInfo);
  Extension* extension_start = nullptr;
  void (*destroy)(void*) = nullptr;
};
struct TypeArguments {
  std::size_t struct_size = sizeof(TypeArguments);
  Extension* extension_start = nullptr;
  Text name;
  std::int64_t* id = nullptr;  // 0, and then the one that XLA has chosen
  const TypeInfo* info = nullptr;
};
struct StateArguments {
  std::size_t struct_size = sizeof(StateArguments);
  Extension* extension_start = nullptr;
  Context* context = nullptr;
  Stage stage = Stage::instantiate;  // the one that has set the state
  std::int64_t* type = nullptr;
  void* state = nullptr;
};

using Unused = void (*)();

struct Api {
  std::size_t struct_size;  // a function is present if it is within this size
  Extension* extension_start;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
  Unused get_message;
  void (*destroy_error)(DestroyArguments*);
  Unused register_handler;
  Error* (*get_stream)(StreamArguments*);
  Error* (*register_type)(TypeArguments*);
  Unused get_context;
  Error* (*set_state)(StateArguments*);
  Error* (*get_state)(StateArguments*);
  Error* (*allocate)(AllocateArguments*);
  Error* (*free)(FreeArguments*);
  Error* (*schedule)(ScheduleArguments*);
  Error* (*count_threads)(ThreadCountArguments*);
  Unused create_future;
  Unused set_future;
  Unused fail_future;
  Unused get_run_id;
  Error* (*get_device)(DeviceArguments*);
};

}  // namespace cudarelu::xla

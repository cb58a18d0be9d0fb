// The alignment of vector accesses.
#pragma once

#include <cstdint>

namespace cudarelu::gpu {

inline constexpr int vector_bytes = 16;  // the widest access of a thread

/// The bytes from the last vector boundary to `pointer`.
inline std::uintptr_t misalignment(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % vector_bytes;
}

}  // namespace cudarelu::gpu

// Whether memory can be read in vectors.
#pragma once

#include <cstdint>

namespace cudarelu::cuda {

inline constexpr int vector_bytes = 16;  // the most that a thread reads at a time

/// Bytes from `pointer` back to the boundary of a vector before it.
inline std::uintptr_t misalignment(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % vector_bytes;
}

}  // namespace cudarelu::cuda

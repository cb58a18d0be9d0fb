// Workspace of a call that XLA captures into a CUDA graph.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace cudarelu::xla {

/// The workspace of one call in a compiled program. A graph uses the same addresses in each launch,
/// so that memory that XLA lends for the time of a capture would belong to others by then. XLA
/// launches the graphs of a program on a device one after the other, so that a call needs its
/// workspace once for each device. The memory is not a part of what XLA preallocates.
class GraphMemory {
 public:
  GraphMemory() = default;
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  /// The workspace number `index` of the call on the current device, of at least `bytes`; nullptr
  /// if there is no memory. It stays until the program is destroyed.
  void* take(int device, int index, std::size_t bytes) noexcept;

 private:
  struct Block {
    int device;
    int index;
    std::size_t bytes;
    void* data;
    void* context;
  };

  std::mutex mutex_;
  std::vector<Block> blocks_;
};

/// Whether the work that is given to the stream is captured into a graph.
bool is_captured(void* stream);

}  // namespace cudarelu::xla

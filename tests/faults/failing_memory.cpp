// Replaces malloc() and what is like it in a process that preloads this library. Large blocks are
// counted, and can be refused: those are the memory of tensors and of workspace. The environment
// variable FAILING_MEMORY_AFTER is the number of those that a program gets; how many were refused
// is the last line of its standard error.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

// glibc's own functions, which it exports for such replacements.
extern "C" {
void* __libc_malloc(std::size_t);                 // NOLINT
void* __libc_calloc(std::size_t, std::size_t);    // NOLINT
void* __libc_memalign(std::size_t, std::size_t);  // NOLINT
void* __libc_realloc(void*, std::size_t);         // NOLINT
void __libc_free(void*);                          // NOLINT
}

namespace {

constexpr std::size_t least = 1 << 14;    // bytes of a large block
std::atomic<long> left = -1;              // blocks that are given before all are refused; -1: all
std::atomic<long> refused = 0;            // blocks that were refused
std::atomic<void*> blocks[1 << 14] = {};  // the large blocks in use

bool refuse(std::size_t bytes) {
  if (bytes < least) return false;
  long before = left;
  while (before > 0 && !left.compare_exchange_weak(before, before - 1)) {
  }
  if (before != 0) return false;
  ++refused;
  return true;
}

void* noted(void* memory, std::size_t bytes) {
  if (memory == nullptr || bytes < least) return memory;
  for (auto& block : blocks) {
    void* none = nullptr;
    if (block.load(std::memory_order_relaxed) == nullptr &&
        block.compare_exchange_strong(none, memory)) {
      break;
    }
  }
  return memory;
}

/// glibc has the size of a block, with flags in the lowest bits, before the block.
void forget(void* memory) {
  if (memory == nullptr || (static_cast<std::size_t*>(memory)[-1] & ~std::size_t{7}) < least)
    return;
  for (auto& block : blocks) {
    void* expected = memory;
    if (block.load(std::memory_order_relaxed) == memory &&
        block.compare_exchange_strong(expected, nullptr)) {
      return;
    }
  }
}

/// Refuses blocks from the start of a program to its end.
class WholeProgram {
 public:
  WholeProgram() {
    if (const char* count = std::getenv(variable)) left = std::atol(count);
  }
  ~WholeProgram() {
    if (std::getenv(variable) != nullptr) dprintf(2, "refused %ld\n", refused.load());
  }

 private:
  static constexpr const char* variable = "FAILING_MEMORY_AFTER";
};
const WholeProgram whole_program;

}  // namespace

extern "C" {

/// Gives `count` large blocks, and refuses those after them; a negative count refuses none.
void failing_memory_after(long count) {
  refused = 0;
  left = count;
}

long failing_memory_refused() { return refused; }

long failing_memory_in_use() {
  long count = 0;
  for (const auto& block : blocks) count += block != nullptr ? 1 : 0;
  return count;
}

void* malloc(std::size_t bytes) {
  if (refuse(bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return noted(__libc_malloc(bytes), bytes);
}

void* calloc(std::size_t count, std::size_t size) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes) || refuse(bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return noted(__libc_calloc(count, size), bytes);
}

void* realloc(void* memory, std::size_t bytes) {
  if (refuse(bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  forget(memory);
  return noted(__libc_realloc(memory, bytes), bytes);
}

void* memalign(std::size_t alignment, std::size_t bytes) {
  if (refuse(bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return noted(__libc_memalign(alignment, bytes), bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void** result, std::size_t alignment, std::size_t bytes) {
  void* const memory = memalign(alignment, bytes);
  if (memory == nullptr) return ENOMEM;
  *result = memory;
  return 0;
}

void free(void* memory) {
  forget(memory);
  __libc_free(memory);
}

}  // extern "C"

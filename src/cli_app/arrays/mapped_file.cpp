#include "arrays/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "error.h"

namespace cudarelu::cli {

MappedFile::MappedFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) throw Error(path.string() + ": there is no such file");
  if (!std::filesystem::is_regular_file(path, error)) throw Error(path.string() + ": not a file");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size == 0) return;  // mmap rejects empty files
  const int file = error ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* data = file < 0 ? MAP_FAILED : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (file >= 0) close(file);
  if (data == MAP_FAILED) throw Error(path.string() + ": cannot be opened");
  bytes_ = {static_cast<const char*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace cudarelu::cli

// A file mapped into memory.
#pragma once

#include <filesystem>
#include <string_view>

namespace cudarelu::cli {

/// Only the pages that are accessed are read from the disk.
class MappedFile {
 public:
  /// Throws an Error that names the file if it is missing, not a regular file, or unreadable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

}  // namespace cudarelu::cli

// A file in memory.
#pragma once

#include <filesystem>
#include <string_view>

namespace cudarelu::cli {

/// Of a large file, only the pages that are looked at are read.
class MappedFile {
 public:
  /// Throws an Error that names the file where it is missing, is no file, or cannot be opened.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

}  // namespace cudarelu::cli

// The record of a batch: a file with one JSON object in a line for each item, appended when the
// item has finished.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace cudarelu::cli {

struct ItemResult {
  std::size_t index;  // in the list
  std::string item;
  std::string error;                           // empty if the item succeeded
  std::map<std::string, std::string> outputs;  // name and file, relative to the manifest's folder
  double seconds;
};

class Manifest {
 public:
  /// Creates manifest.jsonl in the folder or, with `resume`, continues an existing one. Throws an
  /// Error if the file exists without `resume`, is damaged, or belongs to another list.
  Manifest(const std::filesystem::path& folder, const std::vector<std::string>& items, bool resume);

  const std::filesystem::path& path() const { return path_; }
  /// Whether an earlier run has finished the item successfully.
  bool is_done(std::size_t index) const { return done_[index]; }
  /// Appends a result to the file and flushes it. Throws an Error.
  void add(const ItemResult& result);

 private:
  void read(const std::vector<std::string>& items);
  void check_written() const;

  std::filesystem::path path_;
  std::vector<bool> done_;
  std::ofstream file_;
};

}  // namespace cudarelu::cli

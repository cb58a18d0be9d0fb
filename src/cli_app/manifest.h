// What has become of each item of a batch: a file of one JSON object a line, written as it happens.
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
  std::string error;  // empty: done
  std::map<std::string, std::string>
      outputs;  // the file of each, relative to the manifest's folder
  double seconds;
};

class Manifest {
 public:
  /// Begins the file in the folder or, to `resume`, goes on with it where it is there. Throws an
  /// Error where it is there and is not to be resumed, is damaged, or is of another list.
  Manifest(const std::filesystem::path& folder, const std::vector<std::string>& items, bool resume);

  const std::filesystem::path& path() const { return path_; }
  /// Whether a run before this one has done it.
  bool is_done(std::size_t index) const { return done_[index]; }
  /// On disk when this returns, or throws an Error.
  void add(const ItemResult& result);

 private:
  void read(const std::vector<std::string>& items);

  std::filesystem::path path_;
  std::vector<bool> done_;
  std::ofstream file_;
};

}  // namespace cudarelu::cli

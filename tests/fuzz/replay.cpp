// Runs every target on its files in the corpus: without libFuzzer, in every build.

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "targets.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (const cudarelu::fuzz::Target& target : cudarelu::fuzz::targets()) {
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(argv[1]) / target.name)) {
      std::cerr << entry.path().string() << '\n';  // the last one that is named has failed
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string content{std::istreambuf_iterator<char>(file), {}};
      // A copy of its exact size, so that a sanitizer sees a byte that is read after the end.
      const auto bytes = std::make_unique<char[]>(content.size());
      content.copy(bytes.get(), content.size());
      target.run({bytes.get(), content.size()});
      ++count;
    }
    if (count == 0) {
      std::cerr << target.name << " has no files\n";
      return 1;
    }
  }
  return 0;
}

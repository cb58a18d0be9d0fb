// The entry of libFuzzer: cudarelu_fuzz --target=NAME, and libFuzzer's own options.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "targets.h"

namespace {
const cudarelu::fuzz::Target* chosen = nullptr;
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  std::string names;
  for (const cudarelu::fuzz::Target& target : cudarelu::fuzz::targets()) {
    names.append(" ").append(target.name);
    const std::string option = "--target=" + std::string(target.name);
    for (int i = 1; i < *argc; ++i) {
      if ((*argv)[i] == option) chosen = &target;
    }
  }
  if (chosen == nullptr) {
    std::cerr << "--target=NAME is missing; the names are" << names << '\n';
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}

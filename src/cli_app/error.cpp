#include "error.h"

#include <cctype>
#include <iostream>

namespace cudarelu::cli {

void print_error(std::string message) {
  for (char& c : message) {
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = ' ';
  }
  std::cerr << "ort_infer: " << message << '\n';
}

}  // namespace cudarelu::cli

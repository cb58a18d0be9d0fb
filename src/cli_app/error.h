// What is wrong with the user's input, in one line.
#pragma once

#include <stdexcept>

namespace cudarelu::cli {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace cudarelu::cli

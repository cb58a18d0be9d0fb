// What is wrong with the user's input, in one line.
#pragma once

#include <stdexcept>
#include <string>

namespace cudarelu::cli {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Tells it on stderr, in one line whatever the message holds.
void tell(std::string message);

}  // namespace cudarelu::cli

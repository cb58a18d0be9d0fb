// Errors in the user's input, reported in one line.
#pragma once

#include <stdexcept>
#include <string>

namespace cudarelu::cli {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Prints the message to stderr in one line: control characters become spaces.
void print_error(std::string message);

/// Joins names with commas, for a message.
template <class Names>
std::string joined(const Names& names, const char* if_empty = "none") {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? if_empty : list;
}

}  // namespace cudarelu::cli

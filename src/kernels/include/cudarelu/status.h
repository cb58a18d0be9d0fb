// What a call of the core returns: success, or a code and one line that says what is wrong.
#pragma once

#include <string>
#include <utility>

namespace cudarelu {

class [[nodiscard]] Status {
 public:
  enum class Code {
    ok,
    invalid_argument,   // a shape, a value or an attribute that the op does not accept
    unsupported_dtype,  // an element type that the op does not have
    unavailable,        // the build or the machine lacks what the call needs
    out_of_memory,      // the host could not lend the workspace
    device_failure,     // CUDA reported an error
    internal,           // a defect of ours
  };

  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

}  // namespace cudarelu

// What a call of the core returns: success, or a code and one line that says what is wrong.
#pragma once

#include <memory>
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
  Status(Code code, std::string message)
      : error_(std::make_unique<const Error>(code, std::move(message))) {}

  bool ok() const { return error_ == nullptr; }
  Code code() const { return ok() ? Code::ok : error_->code; }
  /// Of a Status that is not ok.
  const std::string& message() const { return error_->message; }

 private:
  struct Error {
    Error(Code code, std::string message) : code(code), message(std::move(message)) {}

    Code code;
    std::string message;
  };

  std::unique_ptr<const Error> error_;  // a success is one null pointer: calls return many
};

}  // namespace cudarelu

// The result of a call of the core: success, or a code and a message of one line.
#pragma once

#include <string>
#include <utility>

namespace cudarelu {

class [[nodiscard]] Status {
 public:
  enum class Code {
    ok,
    invalid_argument,   // a shape, a value or an attribute that the op does not accept
    unsupported_dtype,  // an element type that the op does not support
    unavailable,        // the build or the machine lacks what the call needs
    out_of_memory,      // the host could not provide workspace, or an allocation failed
    device_failure,     // CUDA reported an error
    internal,           // a bug in this library
  };

  Status() = default;
  Status(Code code, std::string message) : error_(new Error{code, std::move(message)}) {}
  Status(Status&& other) noexcept : error_(std::exchange(other.error_, nullptr)) {}
  Status& operator=(Status&& other) noexcept {
    std::swap(error_, other.error_);
    return *this;
  }
  ~Status() {
    if (error_ != nullptr) release();
  }

  /// The error of a failed allocation. Allocates nothing itself.
  static Status out_of_memory() noexcept {
    Status status;
    status.error_ = shared();
    return status;
  }

  bool ok() const { return error_ == nullptr; }
  Code code() const { return ok() ? Code::ok : error_->code; }
  /// Only for a Status that is not ok.
  const std::string& message() const { return error_->message; }

 private:
  struct Error {
    Code code;
    std::string message;
  };

  static const Error* shared() {
    static const Error error{Code::out_of_memory, "out of memory"};
    return &error;
  }
  [[gnu::cold, gnu::noinline]] void release() {
    if (error_ != shared()) delete error_;
  }

  // nullptr: success, which costs nothing to return. Not a std::unique_ptr: <memory> takes long to
  // compile, and every file includes this one.
  const Error* error_ = nullptr;
};

}  // namespace cudarelu

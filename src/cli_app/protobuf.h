// Protobuf's wire format, read where it lies.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cudarelu::cli {

/// The fields of a message, one after the other.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  /// Goes to the next field; false at the end, and where the bytes are no message.
  bool next();

  std::uint64_t field() const { return field_; }
  /// The bytes of a field that has a length or a fixed size; empty of a varint.
  std::string_view data() const { return data_; }
  /// The value of a varint; 0 of other fields.
  std::uint64_t number() const { return number_; }
  bool is_varint() const { return is_varint_; }
  bool malformed() const { return malformed_; }

 private:
  std::string_view rest_;
  std::string_view data_;
  std::uint64_t field_ = 0;
  std::uint64_t number_ = 0;
  bool is_varint_ = false;
  bool malformed_ = false;
};

/// Takes a varint from the front of the bytes; nothing where there is none.
std::optional<std::uint64_t> take_varint(std::string_view& bytes);

}  // namespace cudarelu::cli

// A reader of protobuf's wire format that does not copy the data.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cudarelu::cli {

/// Iterates over the fields of a message.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  /// Advances to the next field. Returns false at the end, and if the bytes are malformed.
  bool next();

  std::uint64_t field() const { return field_; }
  /// The bytes of a field with a length or a fixed size; empty for a varint.
  std::string_view data() const { return data_; }
  /// The value of a varint; 0 for other fields.
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

/// Removes a varint from the front of the bytes. Returns nothing if there is no valid one.
std::optional<std::uint64_t> take_varint(std::string_view& bytes);

}  // namespace cudarelu::cli

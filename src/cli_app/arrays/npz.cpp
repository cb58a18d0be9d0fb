#include "arrays/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "arrays/npy.h"
#include "error.h"

namespace cudarelu::cli {
namespace {

/// An entry of the archive's central directory.
struct Entry {
  std::string name;
  std::uint64_t method = 0;
  std::uint64_t crc = 0;
  std::uint64_t packed_size = 0;
  std::uint64_t size = 0;
  std::uint64_t offset = 0;  // of its local header
};

constexpr std::uint32_t end_signature = 0x06054b50;
constexpr std::uint32_t wide_locator_signature = 0x07064b50;
constexpr std::uint32_t wide_end_signature = 0x06064b50;
constexpr std::uint32_t entry_signature = 0x02014b50;
constexpr std::uint32_t local_signature = 0x04034b50;
constexpr std::uint64_t stored = 0;
constexpr std::uint64_t deflated = 8;
constexpr std::uint64_t max_ratio = 1032;  // of deflate

/// A zip archive, in the format of PKWARE's APPNOTE. Throws std::out_of_range if it is malformed or
/// refers to bytes outside of the file.
// No library: Debian's libzip is shared and needs OpenSSL, and Debian 12 has no miniz.
class Archive {
 public:
  explicit Archive(std::string_view bytes) : bytes_(bytes) {}

  std::vector<Entry> entries() const {
    std::uint64_t end = bytes_.size() - std::min<std::size_t>(bytes_.size(), 22);
    const std::uint64_t last = end - std::min<std::uint64_t>(end, 65535);  // before a comment
    while (number(end, 4) != end_signature) {
      if (end-- == last) throw std::out_of_range("no end");
    }
    std::uint64_t count = number(end + 10, 2);
    std::uint64_t at = number(end + 16, 4);
    if (end >= 20 && number(end - 20, 4) == wide_locator_signature) {  // zip64
      const std::uint64_t wide = number(end - 12, 8);
      if (number(wide, 4) != wide_end_signature) throw std::out_of_range("no end");
      count = number(wide + 32, 8);
      at = number(wide + 48, 8);
    }
    std::vector<Entry> entries;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (number(at, 4) != entry_signature) throw std::out_of_range("no entry");
      const std::uint64_t name_size = number(at + 28, 2);
      const std::uint64_t extra_size = number(at + 30, 2);
      Entry entry{std::string(part(at + 46, name_size)),
                  number(at + 10, 2),
                  number(at + 16, 4),
                  number(at + 20, 4),
                  number(at + 24, 4),
                  number(at + 42, 4)};
      widen(entry, part(at + 46 + name_size, extra_size));
      entries.push_back(std::move(entry));
      at += 46 + name_size + extra_size + number(at + 32, 2);
    }
    return entries;
  }

  std::string_view packed(const Entry& entry) const {
    if (number(entry.offset, 4) != local_signature) throw std::out_of_range("no local header");
    const std::uint64_t skipped = 30 + number(entry.offset + 26, 2) + number(entry.offset + 28, 2);
    return part(entry.offset, skipped + entry.packed_size).substr(skipped);
  }

 private:
  std::string_view part(std::uint64_t at, std::uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) throw std::out_of_range("outside");
    return bytes_.substr(at, size);
  }

  static std::uint64_t number_of(std::string_view bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());  // both are little-endian
    return value;
  }

  std::uint64_t number(std::uint64_t at, std::uint64_t size) const {
    return number_of(part(at, size));
  }

  /// Reads the 64-bit sizes from the extra field; they replace 32-bit sizes of 0xffffffff.
  static void widen(Entry& entry, std::string_view extra) {
    while (extra.size() >= 4) {
      const std::uint64_t id = number_of(extra.substr(0, 2));
      const std::uint64_t size = number_of(extra.substr(2, 2));
      extra.remove_prefix(4);
      if (size > extra.size()) return;
      std::string_view data = extra.substr(0, size);
      extra.remove_prefix(size);
      if (id != 1) continue;
      for (std::uint64_t* value : {&entry.size, &entry.packed_size, &entry.offset}) {
        if (*value != 0xffffffff || data.size() < 8) continue;
        *value = number_of(data.substr(0, 8));
        data.remove_prefix(8);
      }
    }
  }

  std::string_view bytes_;
};

/// Inflates an entry. Returns nothing if the data is damaged or does not have `size` bytes.
std::optional<std::string> inflated(std::string_view packed, std::uint64_t size) {
  if (size / max_ratio > packed.size()) return std::nullopt;  // before it allocates memory
  std::string bytes(size, '\0');
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  // zlib's counters have 32 bits.
  constexpr std::size_t piece = std::size_t{1} << 30;
  std::size_t read = 0;
  std::size_t written = 0;
  int result = Z_OK;
  while (result == Z_OK) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + read));
    stream.avail_in = static_cast<uInt>(std::min(piece, packed.size() - read));
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + written);
    stream.avail_out = static_cast<uInt>(std::min(piece, bytes.size() - written));
    const uInt in = stream.avail_in;
    const uInt out = stream.avail_out;
    result = inflate(&stream, Z_NO_FLUSH);
    read += in - stream.avail_in;
    written += out - stream.avail_out;
  }
  inflateEnd(&stream);
  if (result != Z_STREAM_END || written != size) return std::nullopt;
  return bytes;
}

}  // namespace

Tensor parse_npz(std::string_view file, const std::string& label, const std::string& name,
                 bool or_only) {
  const Archive archive(file);
  std::vector<Entry> entries;
  try {
    entries = archive.entries();
  } catch (const std::out_of_range&) {
    throw Error(label + ": not a .npz file, or a truncated one");
  }
  const auto entry = or_only && entries.size() == 1
                         ? entries.begin()
                         : std::ranges::find(entries, name + ".npy", &Entry::name);
  if (entry == entries.end()) {
    std::vector<std::string> names;
    names.reserve(entries.size());
    for (const Entry& each : entries) names.push_back(each.name);
    throw Error(label + ": has no array " + name + "; it has " + joined(names));
  }
  const std::string array = label + ", " + entry->name;
  const auto damaged = [&] { return Error(array + ": damaged"); };
  std::string_view bytes;
  try {
    bytes = archive.packed(*entry);
  } catch (const std::out_of_range&) {
    throw damaged();
  }
  std::optional<std::string> unpacked;
  if (entry->method == deflated) {
    check_size(entry->size, array);
    unpacked = inflated(bytes, entry->size);
    if (!unpacked) throw damaged();
    bytes = *unpacked;
  } else if (entry->method != stored) {
    throw Error(array + ": compression method " + std::to_string(entry->method) +
                " is not supported; write it with numpy.savez or numpy.savez_compressed");
  }
  if (crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != entry->crc) {
    throw damaged();
  }
  return parse_npy(bytes, array);
}

}  // namespace cudarelu::cli

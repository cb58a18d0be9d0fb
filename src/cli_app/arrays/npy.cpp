#include "arrays/npy.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <system_error>

#include "cudarelu/op.h"
#include "error.h"

namespace cudarelu::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "the data is not byte-swapped");

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t max_header = 1 << 20;

struct Header {
  std::string descr;
  bool fortran_order = false;
  Sizes shape;
};

/// Parses the header, a Python dictionary with three known keys.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  /// Returns nothing if the text is not such a dictionary.
  std::optional<Header> parse() {
    Header header;
    int seen = 0;
    if (!accept("{")) return std::nullopt;
    while (!accept("}")) {
      const std::optional<std::string> key = string();
      if (!key || !accept(":")) return std::nullopt;
      const int bit = *key == "descr" ? 1 : *key == "fortran_order" ? 2 : *key == "shape" ? 4 : 8;
      if (bit == 8 || (seen & bit) != 0) return std::nullopt;
      seen |= bit;
      if (bit == 1) {
        const std::optional<std::string> descr = string();
        if (!descr) return std::nullopt;  // a list describes a structured type
        header.descr = *descr;
      } else if (bit == 2) {
        header.fortran_order = accept("True");
        if (!header.fortran_order && !accept("False")) return std::nullopt;
      } else if (!shape(header.shape)) {
        return std::nullopt;
      }
      if (!accept(",") && !rest_.starts_with('}')) return std::nullopt;
    }
    const bool blank = rest_.find_first_not_of(" \n") == rest_.npos;
    if (seen != 7 || !blank) return std::nullopt;
    return header;
  }

 private:
  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }
  bool accept(std::string_view token) {
    skip_space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    skip_space();
    return true;
  }
  std::optional<std::string> string() {
    skip_space();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const std::size_t end = rest_.find(rest_[0], 1);
    if (end == rest_.npos) return std::nullopt;
    std::string result(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return result;
  }
  bool shape(Sizes& sizes) {
    if (!accept("(")) return false;
    while (!accept(")")) {
      std::int64_t size = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc() || size < 0 || sizes.size() == max_rank) return false;
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      sizes.push_back(size);
      if (!accept(",") && !rest_.starts_with(')')) return false;
    }
    return true;
  }

  std::string_view rest_;
};

const ElementType* element_type(std::string_view descr) {
  if (descr == "bfloat16") descr = "V2";
  const bool one_byte = descr.ends_with('1');
  if (descr.starts_with('<') || descr.starts_with('|') || descr.starts_with('=') ||
      (one_byte && descr.starts_with('>'))) {
    descr.remove_prefix(1);
  }
  const auto* type = std::ranges::find(element_types, descr, &ElementType::npy);
  return type == element_types.end() ? nullptr : &*type;
}

/// Converts from Fortran order to C order.
Tensor transposed(const Tensor& fortran) {
  Tensor result = make_tensor(*fortran.type, fortran.shape);
  const std::size_t size = fortran.type->size;
  std::vector<std::int64_t> index(fortran.shape.size());
  for (std::int64_t to = 0; to < result.count; ++to) {
    std::int64_t from = 0;
    for (std::size_t axis = index.size(); axis-- > 0;) {
      from = from * fortran.shape[axis] + index[axis];
    }
    std::memcpy(result.data.get() + static_cast<std::size_t>(to) * size,
                fortran.data.get() + static_cast<std::size_t>(from) * size, size);
    for (std::size_t axis = index.size(); axis-- > 0;) {
      if (++index[axis] < fortran.shape[axis]) break;
      index[axis] = 0;
    }
  }
  return result;
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& label) {
  const auto fail = [&](const std::string& what) -> Error { return Error(label + ": " + what); };
  if (bytes.size() < 10 || !bytes.starts_with(magic)) throw fail("not a .npy file");
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) {
    throw fail("version " + std::to_string(version) + " of the .npy format is not known");
  }
  const std::size_t prefix = version == 1 ? 10 : 12;  // the magic, the version, the header's length
  std::uint32_t length = 0;
  if (bytes.size() < prefix) throw fail("truncated");
  std::memcpy(&length, &bytes[8], prefix - 8);
  if (length > max_header || prefix + length > bytes.size()) throw fail("truncated");
  const std::optional<Header> header = HeaderParser(bytes.substr(prefix, length)).parse();
  if (!header) throw fail("its header is not that of an array of numbers");
  const ElementType* type = element_type(header->descr);
  if (type == nullptr) {
    throw fail("elements of type " + header->descr + " are not supported" +
               (header->descr.starts_with('>') ? "; save it with little-endian elements" : ""));
  }

  // Compares the sizes with the file before it allocates memory.
  const std::string_view data = bytes.substr(prefix + length);
  const std::optional<std::size_t> size = bytes_of(*type, header->shape);
  if (!size) throw fail("its sizes overflow");
  if (*size != data.size()) {
    throw fail(std::string(*size > data.size() ? "truncated" : "too long") + ": its header says " +
               std::to_string(*size) + " bytes of data, and there are " +
               std::to_string(data.size()));
  }
  check_size(*size, label);
  Tensor tensor = make_tensor(*type, header->shape);
  std::ranges::copy(std::as_bytes(std::span(data)), tensor.data.get());
  return header->fortran_order && tensor.shape.size() > 1 ? transposed(tensor) : tensor;
}

void write_npy(const std::filesystem::path& path, const Tensor& tensor) {
  std::string shape;
  for (const std::int64_t size : tensor.shape) shape += std::to_string(size) + ", ";
  if (tensor.shape.size() > 1) shape.resize(shape.size() - 2);
  if (tensor.shape.size() == 1) shape.pop_back();
  std::string header = std::string("{'descr': '") + (tensor.type->size == 1 ? "|" : "<") +
                       std::string(tensor.type->npy) + "', 'fortran_order': False, 'shape': (" +
                       shape + "), }";
  const std::size_t start = magic.size() + 4;
  header.append(63 - (start + header.size()) % 64, ' ');  // aligns the data to 64 bytes
  header += '\n';

  // Follows links, writes a .part file beside the target, and renames it when it is complete.
  const auto fail = [&](const std::error_code& error) {
    throw Error(path.string() + ": cannot be written: " + error.message());
  };
  std::error_code error;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  if (error) fail(error);  // for example a name that is too long
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw Error(path.string() + ": cannot be replaced, since it is not a regular file");
  }
  const std::filesystem::path part = target.string() + ".part";
  errno = 0;
  std::ofstream file(part, std::ios::binary);
  file << magic << '\x01' << '\0' << static_cast<char>(header.size() & 255)
       << static_cast<char>(header.size() >> 8) << header;
  file.write(reinterpret_cast<const char*>(tensor.data.get()),
             static_cast<std::streamsize>(tensor.bytes()));
  file.close();
  error.assign(file ? 0 : errno, std::generic_category());
  if (file) std::filesystem::rename(part, target, error);
  if (!file || error) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    fail(error);
  }
}

}  // namespace cudarelu::cli

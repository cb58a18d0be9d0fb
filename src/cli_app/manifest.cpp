#include "manifest.h"

#include <cerrno>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "error.h"
#include "json.h"

namespace cudarelu::cli {
namespace {

/// Formats JSON in one line. Bytes that are not UTF-8 become U+FFFD.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The path of an item in JSON, whose strings must be UTF-8.
struct ItemName {
  std::string text;  // bytes that are not UTF-8 are U+FFFD
  Json bytes;        // the path in hexadecimal if the text differs from it, else null

  bool operator==(const ItemName&) const = default;
};

ItemName name_of(const std::string& item) {
  ItemName name{Json::parse(line_of(item)).get<std::string>(), {}};
  if (name.text == item) return name;
  constexpr std::string_view digits = "0123456789abcdef";
  std::string bytes;
  for (const unsigned char byte : item) {
    bytes += digits[byte >> 4];
    bytes += digits[byte & 15];
  }
  name.bytes = bytes;
  return name;
}

}  // namespace

Manifest::Manifest(const std::filesystem::path& folder, const std::vector<std::string>& items,
                   bool resume)
    : path_(folder / "manifest.jsonl"), done_(items.size()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(folder.string() + ": cannot create this folder: " + error.message());
  if (std::filesystem::exists(path_, error)) {
    if (!resume) {
      throw Error(path_.string() +
                  ": already exists; continue with --resume, or choose another --output-dir");
    }
    read(items);
  }
  errno = 0;
  file_.open(path_, std::ios::app);
  check_written();
}

void Manifest::read(const std::vector<std::string>& items) {
  std::ifstream file(path_);
  std::string line;
  std::uintmax_t complete = 0;  // bytes of the complete lines
  while (std::getline(file, line) && !file.eof()) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("index") || !json["index"].is_number_unsigned() ||
        !json.contains("item") || !json["item"].is_string() || !json.contains("status")) {
      throw Error(path_.string() + ": is damaged: " + line);
    }
    const auto index = json["index"].get<std::size_t>();
    const ItemName name{json["item"].get<std::string>(), json.value("item_bytes", Json())};
    if (index >= items.size() || name != name_of(items[index])) {
      throw Error(path_.string() + ": belongs to another list: its item " + std::to_string(index) +
                  " is " + name.text + "; choose another --output-dir");
    }
    done_[index] = json["status"] == "done";
    complete += line.size() + 1;
  }
  file.close();
  std::error_code error;  // removes the incomplete last line of a run that was killed
  if (std::filesystem::file_size(path_, error) > complete) {
    std::filesystem::resize_file(path_, complete, error);
  }
  if (error) throw Error(path_.string() + ": cannot be written: " + error.message());
}

void Manifest::add(const ItemResult& result) {
  const bool done = result.error.empty();
  const ItemName name = name_of(result.item);
  const Json json{{"index", result.index},
                  {"item", name.text},
                  {"item_bytes", name.bytes},
                  {"status", done ? "done" : "failed"},
                  {"error", done ? Json() : Json(result.error)},
                  {"outputs", result.outputs},
                  {"seconds", result.seconds}};
  errno = 0;
  file_ << line_of(json) << '\n' << std::flush;
  check_written();
}

void Manifest::check_written() const {
  if (file_) return;
  throw Error(path_.string() + ": cannot be written: " + std::generic_category().message(errno));
}

}  // namespace cudarelu::cli

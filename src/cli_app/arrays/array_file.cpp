#include "arrays/array_file.h"

#include <algorithm>
#include <cctype>

#include "arrays/mapped_file.h"
#include "arrays/npy.h"
#include "arrays/npz.h"
#include "arrays/tensor_proto.h"
#include "error.h"

namespace cudarelu::cli {

Tensor read_array(const std::filesystem::path& path, const std::string& name, bool or_only) {
  const MappedFile file(path);
  if (path.extension() == ".npz") return parse_npz(file.bytes(), path.string(), name, or_only);
  if (path.extension() == ".pb") return parse_tensor_proto(file.bytes(), path.string());
  return parse_npy(file.bytes(), path.string());
}

std::string file_name(std::string name) {
  for (char& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' ||
                       (c == '.' && &c != &name.front());
    if (!plain) c = '_';
  }
  return name;
}

std::vector<std::filesystem::path> write_outputs(const std::filesystem::path& folder,
                                                 const std::vector<std::string>& names,
                                                 const std::vector<Tensor>& outputs) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(folder.string() + ": cannot create this folder: " + error.message());
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::string name = file_name(names[i]);
    while (std::ranges::find(files, folder / (name + ".npy")) != files.end()) name += '_';
    files.push_back(folder / (name + ".npy"));
    write_npy(files.back(), outputs[i]);
  }
  return files;
}

}  // namespace cudarelu::cli

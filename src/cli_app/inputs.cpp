#include "inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "error.h"
#include "npy.h"
#include "numbers.h"

namespace cudarelu::cli {
namespace {

template <class Names>
std::string joined(const Names& names) {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? "none" : list;
}

bool fits(const InputInfo& info, const Tensor& tensor) {
  if (tensor.type != info.type) return false;
  if (info.shape.empty() && !info.scalar) return true;  // a rank that the model leaves open
  if (tensor.shape.size() != info.shape.size()) return false;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (info.shape[i].size >= 0 && info.shape[i].size != tensor.shape[i]) return false;
  }
  return true;
}

void check_names(const std::vector<InputInfo>& infos,
                 const std::map<std::string, std::filesystem::path>& files,
                 const std::map<std::string, std::int64_t>& sizes) {
  std::vector<std::string> names;
  std::vector<std::string> symbols;
  for (const InputInfo& info : infos) {
    names.push_back(info.name);
    for (const Dim& dim : info.shape) {
      if (dim.size < 0 && !dim.symbol.empty()) symbols.push_back(dim.symbol);
    }
  }
  std::ranges::sort(symbols);
  symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
  for (const auto& [name, file] : files) {
    if (std::ranges::find(names, name) == names.end()) {
      throw Error("--input " + name + ": the model has no such input; it has " + joined(names));
    }
  }
  for (const auto& [symbol, size] : sizes) {
    if (std::ranges::find(symbols, symbol) == symbols.end()) {
      throw Error("--dim " + symbol + ": the model has no such free dimension; it has " +
                  joined(symbols));
    }
  }
}

Tensor read(const InputInfo& info, const std::filesystem::path& file,
            const std::map<std::string, std::int64_t>& asked) {
  Tensor tensor = read_npy(file);
  if (!fits(info, tensor)) {
    throw Error("input " + info.name + ": the model wants " + info.text() + ", but " +
                file.string() + " has " + text_of(tensor));
  }
  for (std::size_t i = 0; i < info.shape.size(); ++i) {
    const auto size = asked.find(info.shape[i].symbol);
    if (info.shape[i].size < 0 && size != asked.end() && size->second != tensor.shape[i]) {
      throw Error("input " + info.name + ": --dim " + size->first + "=" +
                  std::to_string(size->second) + ", but it is " + std::to_string(tensor.shape[i]) +
                  " in " + file.string());
    }
  }
  return tensor;
}

/// The same numbers for a seed everywhere, which the distributions of the library do not promise.
Tensor random_tensor(const ElementType& type, const Sizes& shape, std::mt19937_64& generator) {
  Tensor tensor = make_tensor(type, shape);
  for (std::int64_t i = 0; i < tensor.count; ++i) {
    const double unit = std::ldexp(static_cast<double>(generator() >> 11), -53);  // [0, 1)
    switch (type.kind) {
      case Kind::integer:
      case Kind::natural:
        set_element(tensor, i, std::floor(10 * unit));
        break;
      case Kind::boolean:
        set_element(tensor, i, unit < 0.5 ? 0 : 1);
        break;
      default:
        set_element(tensor, i, 2 * unit - 1);
    }
  }
  return tensor;
}

}  // namespace

Inputs make_inputs(const std::vector<InputInfo>& infos,
                   const std::map<std::string, std::filesystem::path>& files,
                   const std::map<std::string, std::int64_t>& sizes, std::uint64_t seed) {
  check_names(infos, files, sizes);
  Inputs inputs;
  inputs.sizes = sizes;
  inputs.tensors.resize(infos.size());
  inputs.files.resize(infos.size());
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const auto file = files.find(infos[i].name);
    if (file == files.end()) continue;
    inputs.files[i] = file->second;
    inputs.tensors[i] = read(infos[i], file->second, sizes);
    for (std::size_t axis = 0; axis < infos[i].shape.size(); ++axis) {
      const Dim& dim = infos[i].shape[axis];
      if (dim.symbol.empty()) continue;
      const std::int64_t size = inputs.tensors[i].shape[axis];
      const std::int64_t known = inputs.sizes.emplace(dim.symbol, size).first->second;
      if (known != size) {
        throw Error("input " + infos[i].name + ": dimension " + dim.symbol + " is " +
                    std::to_string(size) + " in " + file->second.string() + ", but " +
                    std::to_string(known) + " before");
      }
    }
  }
  std::mt19937_64 generator(seed);
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (inputs.tensors[i].type != nullptr) continue;
    Sizes shape;
    for (const Dim& dim : infos[i].shape) {
      shape.push_back(dim.size >= 0 ? dim.size
                      : dim.symbol.empty()
                          ? default_size
                          : inputs.sizes.emplace(dim.symbol, default_size).first->second);
    }
    inputs.tensors[i] = random_tensor(*infos[i].type, shape, generator);
  }
  return inputs;
}

}  // namespace cudarelu::cli

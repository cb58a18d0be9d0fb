#include "session/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>

#include "arrays/array_file.h"
#include "arrays/numbers.h"
#include "error.h"

namespace cudarelu::cli {
namespace {

bool fits(const InputInfo& info, const Tensor& tensor) {
  if (tensor.type != info.type) return false;
  if (info.shape.empty() && !info.scalar) return true;  // a rank that the model leaves open
  if (tensor.shape.size() != info.shape.size()) return false;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (info.shape[i].size >= 0 && info.shape[i].size != tensor.shape[i]) return false;
  }
  return true;
}

void check_names(const std::vector<InputInfo>& infos, const InputRequest& request) {
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
  for (const auto& [name, source] : request.sources) {
    if (std::ranges::find(names, name) == names.end()) {
      throw Error("--input " + name + ": the model has no such input; it has " + joined(names));
    }
  }
  for (const auto& [symbol, size] : request.sizes) {
    if (std::ranges::find(symbols, symbol) == symbols.end()) {
      throw Error("--dim " + symbol + ": the model has no such free dimension; it has " +
                  joined(symbols));
    }
  }
}

Tensor read(const InputInfo& info, const std::filesystem::path& file, const InputRequest& request) {
  // In an archive that serves several inputs, each array must have the name of its input.
  const bool alone = std::ranges::count(request.sources, file.string(),
                                        [](const auto& source) { return source.second; }) == 1;
  Tensor tensor = read_array(file, info.name, alone);
  if (!fits(info, tensor)) {
    throw Error("input " + info.name + ": the model expects " + info.text() + ", but " +
                file.string() + " has " + text_of(tensor));
  }
  return tensor;
}

/// Gives the same numbers for a seed with every compiler, unlike the distributions of <random>.
void fill_randomly(Tensor& tensor, std::mt19937_64& generator) {
  for (std::int64_t i = 0; i < tensor.count; ++i) {
    const double unit = std::ldexp(static_cast<double>(generator() >> 11), -53);  // [0, 1)
    switch (tensor.type->kind) {
      case Kind::integer:
      case Kind::unsigned_integer:
        set_element(tensor, i, std::floor(10 * unit));
        break;
      case Kind::boolean:
        set_element(tensor, i, unit < 0.5 ? 0 : 1);
        break;
      default:
        set_element(tensor, i, 2 * unit - 1);
    }
  }
}

/// Sets all elements to the value. Throws an Error if the type cannot represent it.
void fill(const InputInfo& info, Tensor& tensor, double value) {
  const bool real = info.type->kind == Kind::real || info.type->kind == Kind::half ||
                    info.type->kind == Kind::bfloat;
  Tensor one = make_tensor(*info.type, {1});
  bool fits = real || (value == std::floor(value) && std::abs(value) < 0x1p63);
  if (fits) {
    set_element(one, 0, value);
    const double kept = std::visit([](auto n) { return static_cast<double>(n); }, element(one, 0));
    fits = real ? std::isfinite(kept) || !std::isfinite(value) : kept == value;
  }
  if (!fits) {
    throw Error("input " + info.name + ": " + std::string(info.type->name) + " does not hold " +
                std::to_string(value));
  }
  const std::size_t size = info.type->size;
  for (std::size_t at = 0; at < tensor.bytes(); at += size) {
    std::copy_n(one.data.get(), size, tensor.data.get() + at);
  }
}

/// Whether the source is generated rather than a file.
bool is_generated(const std::string& source) {
  double ignored = 0;
  return source == "random" || source == "zeros" || source == "ones" || parse_all(source, ignored);
}

/// Notes which names of dimensions have one size in all inputs, and which have several.
void note_sizes(const std::vector<InputInfo>& infos, const InputRequest& request, Inputs& inputs) {
  std::map<std::string, std::set<std::int64_t>> found;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    for (std::size_t axis = 0; axis < infos[i].shape.size(); ++axis) {
      const Dim& dim = infos[i].shape[axis];
      if (dim.size >= 0 || dim.symbol.empty()) continue;
      found[dim.symbol].insert(inputs.tensors[i].shape[axis]);
    }
  }
  inputs.sizes.clear();
  for (auto& [symbol, sizes] : found) {
    if (sizes.size() == 1) inputs.sizes.emplace(symbol, *sizes.begin());
    const auto given = request.sizes.find(symbol);
    if (given != request.sizes.end()) sizes.erase(given->second);
    std::vector<std::string> texts;
    for (const std::int64_t size : sizes) texts.push_back(std::to_string(size));
    if (given != request.sizes.end() && !sizes.empty()) {
      inputs.notes.push_back("--dim " + symbol + "=" + std::to_string(given->second) +
                             ", but files have " + joined(texts));
    } else if (sizes.size() > 1) {
      inputs.notes.push_back("dimension " + symbol + " has several sizes: " + joined(texts));
    }
  }
}

}  // namespace

void add_folder(const std::filesystem::path& folder, const std::vector<InputInfo>& infos,
                std::map<std::string, std::string>& sources) {
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const auto file = folder / ("input_" + std::to_string(i) + ".pb");
    if (sources.contains(infos[i].name)) continue;
    if (!std::filesystem::exists(file)) {
      throw Error(file.string() + ": there is no such file, for input " + infos[i].name);
    }
    sources.emplace(infos[i].name, file.string());
  }
}

Inputs make_inputs(const std::vector<InputInfo>& infos, const InputRequest& request) {
  check_names(infos, request);
  Inputs inputs;
  inputs.sizes = request.sizes;
  inputs.tensors.resize(infos.size());
  inputs.files.resize(infos.size());
  inputs.sources.resize(infos.size(), "random");
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const auto source = request.sources.find(infos[i].name);
    if (source == request.sources.end()) continue;
    inputs.sources[i] = source->second;
    if (is_generated(source->second)) continue;
    const std::filesystem::path file = source->second;
    inputs.files[i] = file;
    inputs.tensors[i] = read(infos[i], file, request);
    for (std::size_t axis = 0; axis < infos[i].shape.size(); ++axis) {
      const Dim& dim = infos[i].shape[axis];
      if (!dim.symbol.empty()) inputs.sizes.emplace(dim.symbol, inputs.tensors[i].shape[axis]);
    }
  }
  std::mt19937_64 generator(request.seed);
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (inputs.tensors[i].type != nullptr) continue;
    Sizes shape;
    for (const Dim& dim : infos[i].shape) {
      shape.push_back(dim.size >= 0 ? dim.size
                      : dim.symbol.empty()
                          ? default_size
                          : inputs.sizes.emplace(dim.symbol, default_size).first->second);
    }
    check_size(bytes_of(*infos[i].type, shape).value_or(0), "input " + infos[i].name);
    inputs.tensors[i] = make_tensor(*infos[i].type, shape);
    double value = inputs.sources[i] == "ones" ? 1 : 0;
    if (inputs.sources[i] == "random") {
      fill_randomly(inputs.tensors[i], generator);
    } else {
      parse_all(inputs.sources[i], value);
      fill(infos[i], inputs.tensors[i], value);
    }
  }
  note_sizes(infos, request, inputs);
  return inputs;
}

}  // namespace cudarelu::cli

// What is fuzzed: every reader of text or bytes that others write. Each must return, or throw the
// exception that its header names.

#include "targets.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays/array_text.h"
#include "arrays/npy.h"
#include "arrays/npz.h"
#include "arrays/tensor_proto.h"
#include "cudarelu/gradient.h"
#include "cudarelu/infer.h"
#include "error.h"
#include "manifest.h"
#include "options.h"
#include "session/model_ops.h"
#include "session/profile.h"

namespace cudarelu::fuzz {
namespace {

using Strings = std::vector<std::string>;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

/// The first `count` lines; the last of them is the rest of the text.
Strings lines(std::string_view text, std::size_t count) {
  Strings result(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = i + 1 < count ? std::min(text.find('\n'), text.size()) : text.size();
    result[i] = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

/// A call with as many dimensions as the signature names: it must be inferred or refused.
void infer_call(const Op& op) {
  struct View {
    bool present;
    DType dtype;
    std::vector<std::int64_t> shape;
  };
  std::vector<View> views;
  for (const Parameter& input : op.signature.inputs) {
    View view{true, input.dtype({DType::float32}), {}};
    for (const Dimension& dim : input.dims) view.shape.push_back(dim.name.empty() ? dim.size : 4);
    if (input.has_star()) view.shape.insert(view.shape.begin() + input.star, {2, 3});
    views.push_back(view);
  }
  std::vector<Attribute> attributes;
  for (const AttributeSpec& spec : op.signature.attributes) attributes.push_back(default_of(spec));
  std::vector<OutputType<std::int64_t>> outputs(op.signature.outputs.size());
  const Status status = infer<std::int64_t, View>(op, views, attributes, outputs);
  require(status.ok() || !status.message().empty());
}

void read_signature(std::string_view text) {
  const Strings parts = lines(text, 2);
  try {
    const Signature signature = parse_signature(parts[0]);
    require(!signature.inputs.empty() && !signature.outputs.empty());
    for (const AttributeSpec& spec : signature.attributes) {
      require(spec.lowest <= spec.highest);
      require(spec.required ||
              (spec.default_value >= spec.lowest && spec.default_value <= spec.highest));
    }
    for (std::size_t i = 0; i < signature.inputs.size(); ++i) signature.shape_source_of(i);
    signature.is_elementwise();
    parse_in_place(signature, parts[1]);
  } catch (const std::invalid_argument&) {
  }
}

/// Reads a module of one op, f, and of ops that its gradient may call.
void read_texts(const Strings& texts) {
  constexpr std::uint32_t all = (1u << all_dtypes.size()) - 1;
  std::vector<cudarelu_op> ops;
  const auto add = [&](const char* signature, const char* gradient) -> cudarelu_op& {
    cudarelu_op op{};
    op.size = sizeof op;
    op.signature = signature;
    op.gradient = gradient;
    op.summary = op.in_place = op.alias_domain = op.alias_op_type = "";
    op.alias_inputs = op.definition = op.equivalent_forms = "";
    op.dtypes = all;
    return ops.emplace_back(op);
  };
  ops.reserve(4);
  add("g(x: T[*], y: T[*]) -> z: T[*]", "x = g(grad_z, y)");
  add("h(x: T[*, c], w: T[c]? = 1, *, a: float = 1.0, k: int = 2 in [0, 8]) -> (p: T[*, c], "
      "q: i32[*])",
      "");
  add("f_form(x: T[*], y: T[*]) -> (z: T[*], rest: T[*])", "x = grad_z; y = grad_rest");
  cudarelu_op& op = add(texts[0].c_str(), texts[1].c_str());
  op.in_place = texts[2].c_str();
  op.alias_domain = texts[3].c_str();
  op.alias_op_type = texts[4].c_str();
  op.alias_inputs = texts[7].c_str();
  op.dtypes = static_cast<std::uint32_t>(std::count(texts[6].begin(), texts[6].end(), 'd')) ^ all;
  op.autocast = static_cast<std::uint32_t>(std::count(texts[6].begin(), texts[6].end(), 'a'));
  std::vector<const cudarelu_op*> pointers;
  for (const cudarelu_op& each : ops) pointers.push_back(&each);
  const cudarelu_module table{.size = sizeof(cudarelu_module),
                              .version = CUDARELU_MODULE_VERSION,
                              .onnx_version = 1,
                              .definition_opset = 18,
                              .op_count = static_cast<std::uint32_t>(pointers.size()),
                              .name = texts[5].c_str(),
                              .onnx_domain = texts[5].c_str(),
                              .built_for = "",
                              .ops = pointers.data(),
                              .engines = nullptr};
  try {
    const std::unique_ptr<Module> module = read_module(table);
    for (const Op& each : module->ops) {
      infer_call(each);
      for (const Gradient& gradient : parse_gradient(each)) {
        require(gradient.input >= 0 && !gradient.value.text.empty());
      }
    }
  } catch (const std::invalid_argument&) {
  }
}

void read_module_texts(std::string_view text) { read_texts(lines(text, 8)); }

void read_gradient(std::string_view text) {
  Strings texts = lines(text, 2);
  texts.insert(texts.end(), {"", "", "", "m", "", ""});
  read_texts(texts);
}

/// The text of a small array, as ort_infer prints it.
void show(const cli::Tensor& tensor) {
  if (tensor.count <= 4096) cli::array_text(tensor);
  cli::text_of(tensor);
}

template <class Read>
void read_or_refuse(const Read& read) {
  try {
    read();
  } catch (const cli::Error& error) {
    require(!std::string_view(error.what()).empty());
  }
}

void read_npy(std::string_view bytes) {
  read_or_refuse([&] { show(cli::parse_npy(bytes, "file")); });
}

void read_npz(std::string_view bytes) {
  for (const bool or_only : {true, false}) {
    read_or_refuse([&] { show(cli::parse_npz(bytes, "file", "x", or_only)); });
  }
}

void read_pb(std::string_view bytes) {
  read_or_refuse([&] { show(cli::parse_tensor_proto(bytes, "file")); });
}

void read_model(std::string_view bytes) {
  cli::parse_model_ops(bytes, {"cudarelu"}).domain_of("node", "Relu");
}

void read_options(std::string_view text) {
  Strings arguments{"ort_infer"};
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) arguments.push_back(line);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::ostringstream printed;  // by --help
  std::streambuf* const standard = std::cout.rdbuf(printed.rdbuf());
  read_or_refuse([&] {
    const auto options = cli::parse_options(static_cast<int>(arguments.size()), argv.data());
    if (options) cli::by_name("--input", options->inputs, {"x", "x=y"});
  });
  std::cout.rdbuf(standard);
}

/// A folder of this process, for readers of files.
const std::filesystem::path& folder() {
  static const cli::ProfileFolder temporary;
  static const std::filesystem::path path = temporary.prefix().parent_path();
  return path;
}

std::filesystem::path written(const char* name, std::string_view bytes) {
  std::filesystem::path path = folder() / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

void read_manifest(std::string_view bytes) {
  written("manifest.jsonl", bytes);
  read_or_refuse([] { cli::Manifest(folder(), {"a.npy", "b\xff.npy"}, true).is_done(0); });
}

void read_trace(std::string_view bytes) {
  read_or_refuse([&] { cli::read_profile(written("trace.json", bytes), {}); });
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{{"signature", read_signature},
                                       {"gradient", read_gradient},
                                       {"module", read_module_texts},
                                       {"npy", read_npy},
                                       {"npz", read_npz},
                                       {"pb", read_pb},
                                       {"model", read_model},
                                       {"options", read_options},
                                       {"manifest", read_manifest},
                                       {"trace", read_trace}};
  return all;
}

}  // namespace cudarelu::fuzz

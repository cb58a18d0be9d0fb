#include <dlfcn.h>
#include <elf.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "cudarelu/op.h"

namespace cudarelu {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

std::string camel_case(std::string_view name) {
  std::string result;
  bool upper = true;
  for (const char c : name) {
    if (c == '_') {
      upper = true;
    } else {
      result += upper && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
      upper = false;
    }
  }
  return result;
}

/// Namespaces that PyTorch has.
constexpr std::array<std::string_view, 11> taken_names{
    "aten",  "prim",   "prims",  "quantized", "inductor",   "c10d",
    "debug", "mkldnn", "onednn", "profiler",  "torchvision"};

/// What no namespace of C++ can be called, beside the keywords of Python.
constexpr std::string_view cpp_words =
    " alignas alignof asm auto bool case catch char char8_t char16_t char32_t concept const "
    "consteval constexpr constinit const_cast co_await co_return co_yield decltype default "
    "delete do double dynamic_cast enum explicit export extern false float friend goto inline "
    "int long main mutable namespace new noexcept nullptr operator private protected public "
    "register reinterpret_cast requires short signed sizeof static static_assert static_cast "
    "std struct switch template this thread_local throw true typedef typeid typename union "
    "unsigned using virtual void volatile wchar_t ";

}  // namespace

void check_module_name(std::string_view name) {
  const bool is_word = !name.empty() &&
                       std::islower(static_cast<unsigned char>(name.front())) != 0 &&
                       std::ranges::all_of(name, [](char c) {
                         return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
                       });
  const std::string text(name);
  if (!is_word) {
    fail("a module cannot have the name '" + text +
         "': a name consists of lower-case letters, digits and _, and begins with a letter");
  }
  if (std::ranges::find(detail::reserved_names, name) != detail::reserved_names.end() ||
      cpp_words.find(" " + text + " ") != cpp_words.npos) {
    fail("a module cannot have the name " + text + ", a keyword of C++, Python or gradients");
  }
  if (std::ranges::find(taken_names, name) != taken_names.end()) {
    fail("a module cannot have the name " + text + ", which PyTorch uses itself");
  }
}

namespace {

/// The text `alias_inputs`, which the first modules lack.
std::string_view alias_inputs_of(const cudarelu_op& op) {
  const bool has_it = op.size >= offsetof(cudarelu_op, alias_inputs) + sizeof op.alias_inputs;
  return has_it ? op.alias_inputs : "";
}

/// The inputs of a node that calls the op by its alias. Throws std::invalid_argument if the names
/// are not all inputs of the op and some of its attributes, each once.
std::vector<NodeInput> parse_alias_inputs(const Signature& signature, std::string_view names) {
  std::vector<NodeInput> all;
  std::size_t inputs = 0;
  while (true) {
    const std::size_t comma = names.find(", ");
    const std::string_view name = names.substr(0, comma);
    const int input = index_of(signature.inputs, name);
    const int attribute = index_of(signature.attributes, name);
    if (input < 0 && attribute < 0) {
      fail("its alias has the input '" + std::string(name) + "', no input or attribute of the op");
    }
    const NodeInput next{input < 0, static_cast<std::size_t>(std::max(input, attribute))};
    if (std::ranges::find(all, next) != all.end()) {
      fail("its alias has the input " + std::string(name) + " twice");
    }
    all.push_back(next);
    if (input >= 0) ++inputs;
    if (comma == names.npos) break;
    names.remove_prefix(comma + 2);
  }
  if (inputs != signature.inputs.size() || all.size() > max_inputs) {
    fail("its alias must have all inputs of the op, and " + std::to_string(max_inputs) +
         " inputs at most");
  }
  return all;
}

Op read_op(const cudarelu_op& from, const Module& module) {
  Op op;
  op.module = &module;
  op.spec = {.signature = from.signature,
             .summary = from.summary,
             .dtypes = {from.dtypes},
             .in_place = from.in_place,
             .gradient = from.gradient,
             .autocast = static_cast<Autocast>(from.autocast),
             .onnx_alias = {from.alias_domain, from.alias_op_type, alias_inputs_of(from)},
             .definition = from.definition,
             .equivalent_forms = from.equivalent_forms};
  const auto name_of_op = [&] {
    return std::string(op.spec.signature.substr(0, op.spec.signature.find('(')));
  };
  try {
    op.signature = parse_signature(op.spec.signature);
    const std::string_view alias_inputs = op.spec.onnx_alias.inputs;
    op.alias_inputs =
        alias_inputs.empty() ? inputs_of(op) : parse_alias_inputs(op.signature, alias_inputs);
    if (!op.spec.in_place.empty()) {
      const InPlace in_place = parse_in_place(op.signature, op.spec.in_place);
      op.in_place_output = in_place.output;
      op.in_place_input = in_place.input;
    }
  } catch (const std::invalid_argument& error) {
    fail(name_of_op() + ": " + error.what());
  }
  op.name = op.signature.name;
  if (op.spec.definition.find_first_not_of(" \n") == std::string_view::npos) {
    fail(std::string(op.name) + ": there is no definition, the op's meaning in ONNX's operators");
  }
  op.onnx_type = camel_case(op.name);
  op.elementwise = (from.flags & CUDARELU_ELEMENTWISE) != 0;
  op.uniform = op.signature.uniform();
  op.uses_gemm = (from.flags & CUDARELU_PRODUCT) != 0;
  op.strided = (from.flags & CUDARELU_STRIDED) != 0;
  op.cpu = from.cpu;
  op.cuda = from.cuda;
  const bool generic = std::ranges::any_of(
      op.signature.inputs, [](const Parameter& input) { return input.is_generic(); });
  if (generic && op.spec.dtypes.bits == 0) fail(std::string(op.name) + ": T has no dtypes");
  if (op.spec.dtypes.bits >> all_dtypes.size() != 0 ||
      from.autocast > static_cast<std::uint32_t>(Autocast::lower)) {
    fail(std::string(op.name) + ": a dtype or a rule for autocast is unknown");
  }
  return op;
}

std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Throws if another file has replaced a library that has been opened. The dynamic linker
/// would return the old library, which it finds by its path.
void check_not_replaced(const std::filesystem::path& path) {
  static std::mutex mutex;
  static auto& opened = *new std::map<std::string, std::array<std::int64_t, 5>>;
  struct stat now{};
  if (stat(path.c_str(), &now) != 0) return;
  const std::array<std::int64_t, 5> file{static_cast<std::int64_t>(now.st_dev),
                                         static_cast<std::int64_t>(now.st_ino), now.st_size,
                                         now.st_mtim.tv_sec, now.st_mtim.tv_nsec};
  const std::lock_guard lock(mutex);
  if (opened.try_emplace(path.string(), file).first->second != file) {
    fail(path.string() +
         " has been replaced since it was loaded; load the new one in a new process");
  }
}

/// The modules that have been added; never destroyed, as their libraries are never unloaded.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Module>> modules;
};

Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

/// The table of a loaded op module; nullptr for another library.
const cudarelu_module* table_of(void* library) {
  const auto get =
      reinterpret_cast<cudarelu_get_module_function>(dlsym(library, CUDARELU_GET_MODULE));
  return get != nullptr ? get() : nullptr;
}

}  // namespace

std::vector<NodeInput> inputs_of(const Op& op) {
  std::vector<NodeInput> all(op.signature.inputs.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].index = i;
  return all;
}

std::unique_ptr<Module> read_module(const cudarelu_module& table, std::filesystem::path path) {
  if (table.version != CUDARELU_MODULE_VERSION || table.size < sizeof(cudarelu_module)) {
    const bool newer = table.version > CUDARELU_MODULE_VERSION;
    fail("the module was built with version " + std::to_string(table.version) +
         " of cudarelu/module.h, and this cudarelu reads version " +
         std::to_string(CUDARELU_MODULE_VERSION) +
         (newer ? ": install a newer cudarelu" : ": build the module again"));
  }
  check_module_name(table.name);
  auto module = std::make_unique<Module>();
  module->name = table.name;
  module->onnx_domain = table.onnx_domain;
  module->onnx_version = table.onnx_version;
  module->definition_opset = table.definition_opset;
  module->built_for = table.built_for;
  module->path = std::move(path);
  module->engines = table.engines;
  if (table.op_count == 0) fail("the module " + std::string(table.name) + " has no ops");
  for (const cudarelu_op* op : std::span(table.ops, table.op_count)) {
    Op read = read_op(*op, *module);
    for (const Op& other : module->ops) {
      if (other.name == read.name) fail("two ops have the name " + std::string(read.name));
      if (other.onnx_type == read.onnx_type) {
        fail(std::string(read.name) + ": " + std::string(other.name) + " has the ONNX type " +
             read.onnx_type + " too");
      }
    }
    module->ops.push_back(std::move(read));
  }
  return module;
}

void check_complete(const std::filesystem::path& library) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(library, error)) return;
  std::ifstream file(library, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    fail(library.string() + ": not a shared library; cudarelu.load() compiles sources");
  }
  // The table of sections, which is at the end of a file.
  const std::uint64_t end =
      header.e_shoff + std::uint64_t{header.e_shnum} * std::uint64_t{header.e_shentsize};
  const auto size = static_cast<std::uint64_t>(file.seekg(0, std::ios::end).tellg());
  if (size < end) {
    fail(library.string() + ": the library is incomplete: it has " + std::to_string(size) +
         " bytes of " + std::to_string(end));
  }
}

std::unique_ptr<Module> open_module(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(path, error);
  if (error || !std::filesystem::is_regular_file(file, error)) {
    fail(path.string() + ": there is no such library");
  }
  check_complete(file);
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();  // it names the file
    fail(reason != nullptr ? reason : file.string() + ": it cannot be loaded");
  }
  check_not_replaced(file);
  const cudarelu_module* const table = table_of(library);
  if (table == nullptr) {
    fail(file.string() + ": not an op module, since it does not export " + CUDARELU_GET_MODULE);
  }
  try {
    return read_module(*table, file);
  } catch (const std::invalid_argument& error) {
    fail(file.string() + ": " + error.what());
  }
}

std::filesystem::path library_of(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? info.dli_fname : "";
}

std::vector<const Module*> modules() {
  const std::lock_guard lock(registry().mutex);
  std::vector<const Module*> all;
  for (const auto& module : registry().modules) all.push_back(module.get());
  return all;
}

const Module* find_module(std::string_view name) {
  const std::lock_guard lock(registry().mutex);
  for (const auto& module : registry().modules) {
    if (module->name == name) return module.get();
  }
  return nullptr;
}

const Module* find_same(const Module& module) {
  const Module* const known = find_module(module.name);
  if (known == nullptr) return nullptr;
  // The same declarations at the same addresses: the dynamic linker knows the file.
  if (known->ops.front().spec.signature.data() == module.ops.front().spec.signature.data()) {
    return known;
  }
  if (contents_of(known->path) == contents_of(module.path)) return known;
  fail("two modules have the name " + std::string(module.name) + ": " + known->path.string() +
       ", which this process keeps, and " + module.path.string());
}

const Module& add_module(std::unique_ptr<Module> module) {
  const std::lock_guard lock(registry().mutex);
  return *registry().modules.emplace_back(std::move(module));
}

const Op* find_op(std::string_view name, const Module& own) {
  const std::size_t colons = name.find("::");
  if (colons == name.npos) return own.find(name);
  const std::string_view space = name.substr(0, colons);
  const Module* const module = space == own.name ? &own : find_module(space);
  return module == nullptr ? nullptr : module->find(name.substr(colons + 2));
}

const cudarelu_engines* find_engines() {
  static std::atomic<const cudarelu_engines*> known = nullptr;
  if (const cudarelu_engines* engines = known.load(std::memory_order_acquire)) return engines;
  const cudarelu_engines* found = nullptr;
  for (const Module* module : modules()) {
    if (found == nullptr) found = module->engines;
  }
  if (found == nullptr) {
    // Beside this library, in its RUNPATH, or already loaded.
    void* const library = dlopen(engine_library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const cudarelu_module* const table = library != nullptr ? table_of(library) : nullptr;
    if (table != nullptr && table->version == CUDARELU_MODULE_VERSION) found = table->engines;
  }
  known.store(found, std::memory_order_release);
  return found;
}

}  // namespace cudarelu

#include "session/op_modules.h"

#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "cudarelu/onnx_runtime.h"
#include "error.h"
#include "session/python_packages.h"

#ifdef CUDARELU_STATIC_OPS
extern "C" const cudarelu_module* cudarelu_get_module();
extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                        const OrtApiBase* base) noexcept;
#endif

namespace cudarelu::cli {
namespace {

/// Calls use(); converts what functions of modules throw to an Error.
template <class Use>
void with_errors(const Use& use) {
  try {
    use();
  } catch (const std::invalid_argument& error) {
    throw Error(error.what());
  }
}

/// Adds a module, unless it has been added.
void add(std::unique_ptr<Module> (*read)(const std::filesystem::path&),
         const std::filesystem::path& path) {
  with_errors([&] {
    std::unique_ptr<Module> module = read(path);
    if (find_same(*module) == nullptr) add_module(std::move(module));
  });
}

/// Adds the module of a library, if it is an op module.
void add_if_module(const std::string& library) {
  with_errors([&] { check_complete(library); });
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const entry = handle != nullptr ? dlsym(handle, CUDARELU_GET_MODULE) : nullptr;
  if (entry != nullptr) add(open_module, library_of(entry));
}

void register_library(const Runtime& runtime, OrtSessionOptions& options,
                      const std::string& library) {
  runtime.check(runtime->RegisterCustomOpsLibrary_V2(&options, library.c_str()));
}

#ifdef CUDARELU_STATIC_OPS

void register_own(const Runtime& runtime, OrtSessionOptions& options) {
  add([](const std::filesystem::path&) { return read_module(*cudarelu_get_module()); }, {});
  runtime.check(RegisterCustomOps(&options, &runtime.base()));
}

#else

/// The library of the module `cudarelu`: beside this program, in the package beside this program's
/// folder, as `pip install --target` puts it, where the build put it, or in a Python environment.
std::filesystem::path own_library() {
  const std::string name = engine_library;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder = program.parent_path();
  std::vector<std::filesystem::path> candidates{
      folder / name, folder.parent_path() / "cudarelu" / name, CUDARELU_OPS_LIBRARY};
  for (const auto& packages : python_packages({}))
    candidates.push_back(packages / "cudarelu" / name);
  for (const auto& candidate : candidates) {
    if (std::filesystem::exists(candidate, error)) return candidate;
  }
  throw Error("cannot find " + name + ", the library with cudarelu's ops; put it beside " +
              program.string());
}

void register_own(const Runtime& runtime, OrtSessionOptions& options) {
  const std::filesystem::path library = own_library();
  add(open_module, library);
  register_library(runtime, options, library);
}

#endif

/// Adds the domains that RegisterCustomOps() of a module has written to an entry of the options.
void add_domains(const Runtime& runtime, const OrtSessionOptions& options, const Module& module,
                 DomainNames& domains) {
  const auto list = session_config_entry(*runtime.operator->(), options, registered_entry(module),
                                         [&](OrtStatus* status) { runtime.check(status); });
  std::istringstream stream(list.value_or(""));
  for (std::string domain; std::getline(stream, domain, ',');) domains.insert(domain);
}

}  // namespace

DomainNames register_libraries(const Runtime& runtime, OrtSessionOptions& options,
                               const std::vector<std::string>& libraries) {
  for (const std::string& library : libraries) {
    const std::string name = library_name(library);
    add_if_module(name);
    register_library(runtime, options, name);
  }
  register_own(runtime, options);
  DomainNames domains;
  for (const Module* module : modules()) add_domains(runtime, options, *module, domains);
  return domains;
}

}  // namespace cudarelu::cli

#include "taken_domain.h"

#include <dlfcn.h>
#include <link.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime.h"

// NOLINTNEXTLINE(readability-redundant-declaration): only where the files are one unit
extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                        const OrtApiBase* base) noexcept;

namespace cudarelu::ort {
namespace {

/// Whether the process has loaded another custom-op library.
bool others_are_loaded() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* names) {
        static_cast<std::vector<std::string>*>(names)->emplace_back(info->dlpi_name);
        return 0;
      },
      &names);
  for (const std::string& name : names) {
    void* library = name.empty() ? nullptr : dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    const void* entry = dlsym(library, "RegisterCustomOps");
    dlclose(library);
    if (entry != nullptr && entry != reinterpret_cast<const void*>(&RegisterCustomOps)) return true;
  }
  return false;
}

/// Loads an empty model with these options and, if not null, one more domain. Returns the error of
/// ONNX Runtime, which checks the domains before the model.
std::string load_error(const OrtApi& api, const OrtEnv& environment,
                       const OrtSessionOptions& options, OrtCustomOpDomain* added) {
  OrtSessionOptions* copy = nullptr;
  check(api.CloneSessionOptions(&options, &copy));
  const std::unique_ptr<OrtSessionOptions, decltype(api.ReleaseSessionOptions)> owner(
      copy, api.ReleaseSessionOptions);
  // The session is discarded: it starts no threads, writes no trace and logs nothing.
  check(api.SetIntraOpNumThreads(copy, 1));
  check(api.SetInterOpNumThreads(copy, 1));
  check(api.DisableProfiling(copy));
  check(api.SetSessionLogSeverityLevel(copy, ORT_LOGGING_LEVEL_FATAL));
  if (added != nullptr) check(api.AddCustomOpDomain(copy, added));
  OrtSession* session = nullptr;
  OrtStatus* status = api.CreateSessionFromArray(&environment, "", 0, copy, &session);
  if (status == nullptr) {
    api.ReleaseSession(session);
    return "";
  }
  std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  return message;
}

}  // namespace

bool is_taken(const OrtApi& api, const OrtSessionOptions& options, OrtCustomOpDomain& domain) {
  // The first session of a process decides how it treats denormals, so avoid creating one.
  if (!others_are_loaded()) return false;
  OrtEnv* environment = nullptr;  // the environment of the process, if it exists
  if (!succeeded(api, api.CreateEnv(ORT_LOGGING_LEVEL_FATAL, "cudarelu", &environment))) {
    return false;
  }
  const std::unique_ptr<OrtEnv, decltype(api.ReleaseEnv)> owner(environment, api.ReleaseEnv);
  try {
    return load_error(api, *environment, options, nullptr) !=
           load_error(api, *environment, options, &domain);
  } catch (const RuntimeFailure& failure) {
    api.ReleaseStatus(failure.status);
    return false;
  }
}

}  // namespace cudarelu::ort

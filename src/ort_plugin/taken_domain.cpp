#include "taken_domain.h"

#include <dlfcn.h>
#include <link.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime.h"

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                        const OrtApiBase* base) noexcept;

namespace cudarelu::ort {
namespace {

/// Whether the process has another custom-op library.
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

/// What ONNX Runtime says of an empty model, with these options and a further domain, if there is
/// one. It takes in the domains before it looks at the model.
std::string answer(const OrtApi& api, const OrtEnv& environment, const OrtSessionOptions& options,
                   OrtCustomOpDomain* further) {
  OrtSessionOptions* copy = nullptr;
  check(api.CloneSessionOptions(&options, &copy));
  const std::unique_ptr<OrtSessionOptions, decltype(api.ReleaseSessionOptions)> owner(
      copy, api.ReleaseSessionOptions);
  // No session comes of it, so that it is to start no threads, write no trace and log nothing.
  check(api.SetIntraOpNumThreads(copy, 1));
  check(api.SetInterOpNumThreads(copy, 1));
  check(api.DisableProfiling(copy));
  check(api.SetSessionLogSeverityLevel(copy, ORT_LOGGING_LEVEL_FATAL));
  if (further != nullptr) check(api.AddCustomOpDomain(copy, further));
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
  // The first session of a process decides how it treats denormals: begin none without need.
  if (!others_are_loaded()) return false;
  OrtEnv* environment = nullptr;  // the process's one, if there is one
  if (!succeeded(api, api.CreateEnv(ORT_LOGGING_LEVEL_FATAL, "cudarelu", &environment))) {
    return false;
  }
  const std::unique_ptr<OrtEnv, decltype(api.ReleaseEnv)> owner(environment, api.ReleaseEnv);
  try {
    return answer(api, *environment, options, nullptr) !=
           answer(api, *environment, options, &domain);
  } catch (const Failure& failure) {
    api.ReleaseStatus(failure.status);
    return false;
  }
}

}  // namespace cudarelu::ort

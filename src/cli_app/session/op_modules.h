// The op modules that the models of this process may use.
#pragma once

#include <string>
#include <vector>

#include "session/model_ops.h"
#include "session/runtime.h"

namespace cudarelu::cli {

/// Registers custom-op libraries, which may be op modules, and then the module `cudarelu`, so that
/// it leaves out alias domains that they have. Returns the domains of all op modules. Throws an
/// Error.
DomainNames register_libraries(const Runtime& runtime, OrtSessionOptions& options,
                               const std::vector<std::string>& libraries);

}  // namespace cudarelu::cli

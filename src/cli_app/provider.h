// Which execution provider runs a model.
#pragma once

#include <string>

#include "runtime.h"

namespace cudarelu::cli {

struct Provider {
  std::string name;    // "cpu" or "cuda"
  std::string reason;  // of the choice, where the user left it open; may be empty
};

/// Adds the provider to the options: `wanted` is "cpu", "cuda", or "auto", which is CUDA where it
/// is to be had. Throws an Error that names what is missing where "cuda" is wanted and cannot be
/// had.
Provider add_provider(const Runtime& runtime, OrtSessionOptions& options,
                      const std::string& wanted);

}  // namespace cudarelu::cli

// Which execution provider runs a model.
#pragma once

#include <string>

#include "runtime.h"

namespace cudarelu::cli {

struct ProviderChoice {
  std::string name = "auto";  // "cpu", "cuda", or "auto", which is CUDA where it is to be had
  int device = 0;             // of CUDA
  bool require_cuda = false;  // for each node
  bool cuda_graph = false;
};

struct Provider {
  std::string name;    // "cpu" or "cuda"
  std::string reason;  // of the choice, where the user left it open; may be empty
};

/// Adds the provider to the options. Throws an Error that names what is missing where CUDA is
/// wanted and cannot be had.
Provider add_provider(const Runtime& runtime, OrtSessionOptions& options,
                      const ProviderChoice& choice);

}  // namespace cudarelu::cli

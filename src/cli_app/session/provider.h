// The choice of the execution provider.
#pragma once

#include <string>

#include "session/runtime.h"

namespace cudarelu::cli {

struct ProviderChoice {
  std::string name = "auto";  // "cpu", "cuda", or "auto": CUDA if it is available
  int device = 0;             // the CUDA device
  bool require_cuda = false;  // every node must run on CUDA
  bool cuda_graph = false;
};

struct Provider {
  std::string name;    // "cpu" or "cuda"
  std::string reason;  // why "auto" chose it; empty if the user chose
};

/// Adds the provider to the options. Throws an Error that names what is missing if CUDA is
/// requested but not available.
Provider add_provider(const Runtime& runtime, OrtSessionOptions& options,
                      const ProviderChoice& choice);

}  // namespace cudarelu::cli

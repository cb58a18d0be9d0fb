// Many inputs through one model, one after the other.
#pragma once

#include "options.h"

namespace cudarelu::cli {

/// Runs each item of the list, with the memory of one, and reports on stdout; gives the exit code.
/// Throws an Error.
int infer_batch(const Options& options, const BatchOptions& batch);

}  // namespace cudarelu::cli

// Running one model on a list of inputs.
#pragma once

#include "options.h"

namespace cudarelu::cli {

/// Runs the items of the list one after the other, so that only one is in memory, and prints a
/// report to stdout. Returns the exit code. Throws an Error.
int infer_batch(const Options& options, const BatchOptions& batch);

}  // namespace cudarelu::cli

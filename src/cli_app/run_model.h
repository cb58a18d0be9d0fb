// One run of a model, with comparison, measurement and output files on request.
#pragma once

#include "options.h"

namespace cudarelu::cli {

/// Runs the model, compares, measures and writes outputs as the options say, and prints a report to
/// stdout. Returns the exit code. Throws an Error.
int infer(const Options& options);

}  // namespace cudarelu::cli

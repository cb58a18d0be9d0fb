// One run of a model, and what is wanted of it besides.
#pragma once

#include "options.h"

namespace cudarelu::cli {

/// Runs, compares, measures, writes the outputs and reports on stdout; gives the exit code. Throws
/// an Error.
int infer(const Options& options);

}  // namespace cudarelu::cli

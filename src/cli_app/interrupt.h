// Ctrl-C, which ends a run cleanly: what was done is kept.
#pragma once

namespace cudarelu::cli {

/// From now on the first SIGINT is noted; a second one ends the process as ever.
void note_interrupts();

bool interrupted();

inline constexpr int interrupted_exit_code = 130;

}  // namespace cudarelu::cli

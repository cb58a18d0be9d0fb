// Handling of Ctrl-C: the program stops after the current step and keeps its results.
#pragma once

namespace cudarelu::cli {

/// After this call the first SIGINT makes interrupted() true. A second one ends the process.
void note_interrupts();

bool interrupted();

inline constexpr int interrupted_exit_code = 130;

}  // namespace cudarelu::cli

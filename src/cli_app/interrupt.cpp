#include "interrupt.h"

#include <csignal>

namespace cudarelu::cli {
namespace {

volatile std::sig_atomic_t received = 0;

}  // namespace

void note_interrupts() {
  struct sigaction action{};
  action.sa_handler = [](int) { received = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return received != 0; }

}  // namespace cudarelu::cli

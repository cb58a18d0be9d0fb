#include "report/progress.h"

#include <unistd.h>

#include <iostream>

namespace cudarelu::cli {

Progress::Progress()
    : terminal_(isatty(STDERR_FILENO) == 1), last_(std::chrono::steady_clock::now()) {}

void Progress::show(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - last_ < interval) return;
  last_ = now;
  shown_ = true;
  std::cerr << "\r\x1b[K" << text << std::flush;
}

void Progress::clear() {
  if (shown_) std::cerr << "\r\x1b[K" << std::flush;
  shown_ = false;
}

}  // namespace cudarelu::cli

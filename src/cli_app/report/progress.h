// Progress display of a long run.
#pragma once

#include <chrono>
#include <string>

namespace cudarelu::cli {

/// One line on stderr that is overwritten. Prints nothing if stderr is not a terminal, or if the
/// run is shorter than the interval.
class Progress {
 public:
  static constexpr std::chrono::milliseconds interval{200};

  Progress();
  void show(const std::string& text);
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace cudarelu::cli

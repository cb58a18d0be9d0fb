// What a long run tells a user who watches.
#pragma once

#include <chrono>
#include <string>

namespace cudarelu::cli {

/// One line on stderr that is written over; none where that is no terminal.
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

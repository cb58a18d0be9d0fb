// The durations of many runs, in bounded memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

namespace cudarelu::cli {

/// In milliseconds. The percentiles are over all runs, and right to 0.05 %; the others are exact.
struct Latency {
  double mean, min, p50, p90, p99, max;
};

/// Counts in buckets, of which every doubling of the time has 1,024.
class Durations {
 public:
  void add(std::chrono::nanoseconds duration) {
    const auto time = static_cast<std::uint64_t>(duration.count());
    ++counts_[bucket_of(time)];
    ++count_;
    sum_ += time;
    if (time < least_) least_ = time;
    if (time > greatest_) greatest_ = time;
  }
  void add(const Durations& others);

  std::uint64_t count() const { return count_; }
  /// Of at least one.
  Latency latency() const;

 private:
  static std::size_t bucket_of(std::uint64_t time);
  /// The least time in which that share of the runs were over, in nanoseconds.
  double percentile(double share) const;

  std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(std::size_t{55} * 1024);
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
  std::uint64_t least_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t greatest_ = 0;
};

}  // namespace cudarelu::cli

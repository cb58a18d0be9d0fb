// Statistics of the durations of many runs, in constant memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

namespace cudarelu::cli {

/// Times in milliseconds, over all runs. The percentiles are accurate to 0.05 %; the other values
/// are exact.
struct Latency {
  double mean, min, p50, p90, p99, max;
};

/// A histogram of nanoseconds with 1,024 buckets for each power of two: times below 2,048 ns have a
/// bucket each, those from 2,048 to 4,095 ns share one between two, and so on.
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
  /// Requires at least one duration.
  Latency latency() const;

 private:
  static std::size_t bucket_of(std::uint64_t time);
  /// The time, in nanoseconds, that at least this share of the runs did not exceed.
  double percentile(double share) const;

  std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(std::size_t{55} * 1024);
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
  std::uint64_t least_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t greatest_ = 0;
};

}  // namespace cudarelu::cli

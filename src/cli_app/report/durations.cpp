#include "report/durations.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cudarelu::cli {

std::size_t Durations::bucket_of(std::uint64_t time) {
  const auto width = static_cast<int>(std::bit_width(time));
  const int shift = width > 11 ? width - 11 : 0;  // keeps the upper 11 bits
  return static_cast<std::size_t>(shift) * 1024 + (time >> shift);
}

void Durations::add(const Durations& others) {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += others.counts_[i];
  count_ += others.count_;
  sum_ += others.sum_;
  least_ = std::min(least_, others.least_);
  greatest_ = std::max(greatest_, others.greatest_);
}

double Durations::percentile(double share) const {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  std::size_t bucket = 0;
  while (seen < wanted) seen += counts_[bucket++];
  --bucket;
  const std::size_t shift = bucket < 2048 ? 0 : bucket / 1024 - 1;
  const double begin =
      std::ldexp(static_cast<double>(bucket - shift * 1024), static_cast<int>(shift));
  const double middle = begin + (std::ldexp(1, static_cast<int>(shift)) - 1) / 2;
  return std::clamp(middle, static_cast<double>(least_), static_cast<double>(greatest_));
}

Latency Durations::latency() const {
  constexpr double ms = 1e-6;
  return {static_cast<double>(sum_) / static_cast<double>(count_) * ms,
          static_cast<double>(least_) * ms,
          percentile(0.5) * ms,
          percentile(0.9) * ms,
          percentile(0.99) * ms,
          static_cast<double>(greatest_) * ms};
}

}  // namespace cudarelu::cli

#include "arrays/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "arrays/numbers.h"

namespace cudarelu::cli {

Comparison compare(const Tensor& actual, const Tensor& expected, const Tolerance& tolerance) {
  Comparison result;
  if (actual.type != expected.type || actual.shape != expected.shape) {
    result.mismatch = text_of(actual) + ", expected " + text_of(expected);
    return result;
  }
  result.count = actual.count;
  for (std::int64_t i = 0; i < actual.count; ++i) {
    const Number a = element(actual, i);
    const Number b = element(expected, i);
    if (a == b) continue;
    const auto value = [](const Number& number) {
      return std::visit([](auto n) { return static_cast<double>(n); }, number);
    };
    const double x = value(a);
    const double y = value(b);
    if (std::isnan(x) && std::isnan(y)) continue;
    double error = std::abs(x - y);  // NaN if one of them is NaN
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    const bool real = std::holds_alternative<double>(a);
    const bool finite = std::isfinite(error);
    const bool close =
        real && finite && error <= tolerance.absolute + tolerance.relative * std::abs(y);
    if (!close) ++result.differing;
    if (result.worst < 0 || error > result.max_absolute) {
      result.worst = i;
      result.max_absolute = error;
    }
    if (y != 0 && !std::isnan(y)) {
      result.max_relative = std::max(result.max_relative, finite ? error / std::abs(y) : error);
    }
  }
  std::int64_t rest = std::max<std::int64_t>(result.worst, 0);
  for (std::size_t axis = actual.shape.size(); axis-- > 0 && result.worst >= 0;) {
    result.worst_index.insert(result.worst_index.begin(), rest % actual.shape[axis]);
    rest /= actual.shape[axis];
  }
  return result;
}

}  // namespace cudarelu::cli

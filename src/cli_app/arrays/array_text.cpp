#include "arrays/array_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "arrays/numbers.h"

namespace cudarelu::cli {
namespace {

// The defaults of numpy.set_printoptions().
constexpr std::int64_t threshold = 1000;
constexpr std::int64_t edge_items = 3;
constexpr std::size_t line_width = 75;
constexpr int max_decimals = 8;

std::string format(const char* pattern, int precision, double value) {
  std::array<char, 512> text;  // the largest double has 309 digits before its point
  const int length = std::snprintf(text.data(), text.size(), pattern, precision, value);
  return {text.data(), static_cast<std::size_t>(length)};
}

/// Returns the number of significant digits that distinguish the value from all others of its type.
int significant_digits(const ElementType& type, double value) {
  int digits = 1;
  while (digits < 17 && rounded_to(type, std::strtod(format("%.*e", digits - 1, value).c_str(),
                                                     nullptr)) != value) {
    ++digits;
  }
  return digits;
}

/// Formats floating-point numbers, aligned at their points. Uses exponents if the numbers differ
/// widely in size.
class RealFormat {
 public:
  RealFormat(const ElementType& type, const std::vector<double>& values) : type_(type) {
    double least = std::numeric_limits<double>::infinity();
    double greatest = 0;
    for (const double value : values) {
      if (!std::isfinite(value) || value == 0) continue;
      least = std::min(least, std::abs(value));
      greatest = std::max(greatest, std::abs(value));
    }
    scientific_ = greatest > 0 && (greatest >= 1e8 || least < 1e-4 || greatest / least > 1000);
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      if (scientific_) {
        const int decimals = significant_digits(type, value) - 1;
        decimals_ = std::max(decimals_, std::min(decimals, max_decimals));
      } else {
        const std::string text = fixed(value);
        const std::size_t point = text.find('.');
        decimals_ = std::max(decimals_, static_cast<int>(text.size() - point - 1));
      }
    }
    for (const double value : values) width_ = std::max(width_, text(value).size());
  }

  std::string operator()(double value) const {
    const std::string result = text(value);
    return std::string(width_ - result.size(), ' ') + result;
  }

 private:
  /// Formats with a point and the decimals that are needed, at most eight.
  std::string fixed(double value) const {
    const int digits = value == 0 ? 1 : significant_digits(type_, value);
    const int exponent = value == 0 ? 0 : static_cast<int>(std::floor(std::log10(std::abs(value))));
    std::string text = format("%.*f", std::clamp(digits - 1 - exponent, 1, max_decimals), value);
    text.resize(text.find_last_not_of('0') + 1);
    return text;
  }

  std::string text(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    if (scientific_) {
      std::string text = format("%.*e", decimals_, value);
      if (decimals_ == 0)
        text.insert(text.begin() + static_cast<std::ptrdiff_t>(text.find('e')), '.');
      return text;
    }
    std::string text = fixed(value);
    const std::size_t decimals = text.size() - text.find('.') - 1;
    return text.append(static_cast<std::size_t>(decimals_) - decimals, ' ');
  }

  const ElementType& type_;
  bool scientific_ = false;
  int decimals_ = 0;
  std::size_t width_ = 0;
};

class Printer {
 public:
  explicit Printer(const Tensor& tensor) : tensor_(tensor), shortened_(tensor.count > threshold) {}

  std::string print() {
    if (tensor_.count == 0) return "[]";
    visit(0, 0);
    format_words();
    return nested(0, 1);
  }

 private:
  /// Returns the positions along the axis that are shown; -1 stands for those that are left out.
  std::vector<std::int64_t> shown(std::size_t axis) const {
    const std::int64_t size = tensor_.shape[axis];
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < size; ++i) {
      if (shortened_ && size > 2 * edge_items && i == edge_items) {
        positions.push_back(-1);
        i = size - edge_items;
      }
      positions.push_back(i);
    }
    return positions;
  }

  /// Collects the elements that are shown, in row-major order.
  void visit(std::size_t axis, std::int64_t index) {
    if (axis == tensor_.shape.size()) {
      numbers_.push_back(element(tensor_, index));
      return;
    }
    for (const std::int64_t i : shown(axis)) {
      if (i >= 0) visit(axis + 1, index * tensor_.shape[axis] + i);
    }
  }

  void format_words() {
    if (std::holds_alternative<double>(numbers_.front())) {
      std::vector<double> values;
      values.reserve(numbers_.size());
      for (const Number& number : numbers_) values.push_back(std::get<double>(number));
      const RealFormat format(*tensor_.type, values);
      for (const double value : values) words_.push_back(format(value));
      return;
    }
    std::size_t width = 0;
    for (const Number& number : numbers_) {
      if (const bool* truth = std::get_if<bool>(&number)) {
        words_.push_back(*truth ? "True" : "False");
      } else if (const auto* unsigned_integer = std::get_if<std::uint64_t>(&number)) {
        words_.push_back(std::to_string(*unsigned_integer));
      } else {
        words_.push_back(std::to_string(std::get<std::int64_t>(number)));
      }
      width = std::max(width, words_.back().size());
    }
    for (std::string& word : words_) word.insert(0, width - word.size(), ' ');
  }

  std::string nested(std::size_t axis, std::size_t indent) {
    if (axis == tensor_.shape.size()) return words_[next_++];
    const bool last = axis + 1 == tensor_.shape.size();
    std::string text = "[";
    std::size_t line = indent;
    bool first = true;
    for (const std::int64_t i : shown(axis)) {
      const std::string item = i < 0 ? "..." : nested(axis + 1, indent + 1);
      if (first) {
        line += item.size();
      } else if (last && line + 1 + item.size() <= line_width - 1) {
        text += ' ';
        line += 1 + item.size();
      } else {
        if (last) text.resize(text.find_last_not_of(' ') + 1);
        text.append(tensor_.shape.size() - axis - (last ? 0 : 1), '\n');
        text.append(indent, ' ');
        line = indent + item.size();
      }
      text += item;
      first = false;
    }
    return text + "]";
  }

  const Tensor& tensor_;
  const bool shortened_;
  std::vector<Number> numbers_;
  std::vector<std::string> words_;
  std::size_t next_ = 0;
};

}  // namespace

std::string array_text(const Tensor& tensor) { return Printer(tensor).print(); }

}  // namespace cudarelu::cli

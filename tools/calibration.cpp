// The unit of compile seconds in tools/budget.json: compiling this file. If it changes, all numbers
// there do.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

template <int N>
double sum_of_sorted(double scale) {
  std::vector<std::tuple<double, std::string, int>> values(N);
  std::map<std::string, std::function<double(double)>> functions;
  for (auto& [value, text, index] : values) {
    text = std::to_string(scale += N);
    index = static_cast<int>(text.size()) % N;
    functions[text] = [value = value, index = index](double x) { return value * x + index; };
  }
  std::stable_sort(values.begin(), values.end(), std::greater<>());
  double sum = 0;
  for (const auto& [value, text, index] : values) sum += functions.at(text)(value);
  return sum;
}

int main(int argc, char**) { std::cout << sum_of_sorted<1>(argc) + sum_of_sorted<2>(argc) << '\n'; }

// What the row-wise ops share on the CPU.
#pragma once

#include <algorithm>
#include <limits>

#include "cudarelu/call.h"
#include "types.h"

namespace cudarelu::cpu {

/// Calls body(row offset) for each row of `columns` elements, on the host's threads.
template <class Body>
void for_each_row(const Call& call, const Body& body) {
  const TensorView& tensor = call.inputs[0];
  const std::int64_t columns = tensor.shape.back();
  if (columns == 0) return;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / columns);
  call.execution.parallel_for(tensor.size() / columns, grain,
                              [&](std::int64_t begin, std::int64_t end) {
                                for (std::int64_t row = begin; row < end; ++row) {
                                  body(row * columns);
                                }
                              });
}

/// The sum of term(0) ... term(n - 1) in float64.
template <class Term>
double sum(std::int64_t n, const Term& term) {
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) total += term(i);
  return total;
}

}  // namespace cudarelu::cpu

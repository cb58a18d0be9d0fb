// The elementwise engine for the CPU.
#pragma once

#include <algorithm>
#include <array>

#include "pointwise/op.h"

namespace cudarelu {
namespace pointwise {

/// Elements that one thread takes at the least: a few microseconds of work.
inline constexpr std::int64_t cpu_grain = 16384;

template <class F, class T>
void run_range(const Call& call, Extent extent, std::int64_t begin, std::int64_t end) {
  using C = Compute<T>;
  std::array<C, attribute_count<F> + 1> attributes{};  // one more: none would be no array
  for (int i = 0; i < attribute_count<F>; ++i) {
    attributes[i] = static_cast<C>(call.real(i));
  }
  T* const output = static_cast<T*>(call.outputs[0].data);
  while (begin < end) {
    const std::int64_t column = row_inputs<F> != 0 ? begin % extent.columns : 0;
    const std::int64_t stop = std::min(end, begin + extent.columns - column);
    std::array<const T*, input_count<F>> inputs;
    for (int i = 0; i < input_count<F>; ++i) {
      inputs[i] = static_cast<const T*>(call.inputs[i].data) + (is_row<F>(i) ? column : begin);
    }
    T* const y = output + begin;
    const std::int64_t count = stop - begin;
    // An output is apart from each input, or is that input: no iteration waits for another.
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
    for (std::int64_t j = 0; j < count; ++j) {
      std::array<C, input_count<F>> x;
      for (int i = 0; i < input_count<F>; ++i) x[i] = load(inputs[i][j]);
      y[j] = store<T>(apply<F>(x.data(), attributes.data()));
    }
    begin = stop;
  }
}

}  // namespace pointwise

template <class F>
Status pointwise_cpu(const Call& call) {
  return visit_dtype<F::spec.dtypes>(call.outputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const pointwise::Extent extent = pointwise::extent_of<F>(call);
    call.execution.parallel_for(extent.size, pointwise::cpu_grain,
                                [&](std::int64_t begin, std::int64_t end) {
                                  pointwise::run_range<F, T>(call, extent, begin, end);
                                });
    return Status();
  });
}

}  // namespace cudarelu

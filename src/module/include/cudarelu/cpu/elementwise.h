// The elementwise engine for the CPU.
#pragma once

#include <algorithm>
#include <array>

#include "cudarelu/cpu/blocks.h"
#include "cudarelu/elementwise.h"

namespace cudarelu {
namespace elementwise {

/// The fewest elements for a thread: some microseconds of work.
inline constexpr std::int64_t cpu_grain = 32768;

template <class F, int choice, class T, cpu::Isa isa>
void run_range(const Call& call, Extent extent, std::int64_t begin, std::int64_t end) {
  using C = Compute<T>;
  std::array<C, attribute_count<F> + 1> attributes{};  // one more, for ops without any
  read_attributes<F>(call, attributes.data());
  // The results have the block of the first input, unless they may have to be computed again.
  constexpr bool again = takes_angles<F, C>;
  constexpr int result = again ? input_count<F> : 0;
  std::array<cpu::Block<C>, input_count<F> + (again ? 1 : 0)> blocks;
  T* const output = static_cast<T*>(call.outputs[0].data);
  while (begin < end) {
    // A row, or a repeated element of one, or the rest of it.
    const std::int64_t period = spread_inputs<F> != 0 ? extent.repeats : extent.columns;
    const std::int64_t past = row_inputs<F> != 0 ? begin % period : 0;
    std::int64_t stop = std::min(end, begin + period - past);
    if (spread_inputs<F> != 0) stop = std::min(stop, begin + cpu::block_size);
    const auto compute = [&](std::int64_t first, std::int64_t count) {
      std::array<const C*, input_count<F>> inputs;
      for (int i = 0; i < input_count<F>; ++i) {
        const T* const x =
            static_cast<const T*>(call.inputs[i].data) + extent.element_of<F>(i, begin);
        if (is_spread<F>(i)) {
          std::fill_n(blocks[i].data(), count, *cpu::read<isa>(x, 1, blocks[i]));
          inputs[i] = blocks[i].data();
        } else {
          inputs[i] = cpu::read<isa>(x + first, count, blocks[i]);
        }
      }
      C* const y = cpu::target(output + begin + first, blocks[result]);
      const auto compute_all = [&](auto&... angles) {
        // The output and an input are the same memory or do not overlap.
        const auto compute_one = [&](std::int64_t j) {
          std::array<C, input_count<F>> x;
          for (int i = 0; i < input_count<F>; ++i) x[i] = inputs[i][j];
          y[j] = apply<F, choice, C>(x.data(), attributes.data(), angles...);
        };
        cpu::for_each_index_of_small_block<T>(count, compute_one);
      };
      bool computed = false;
      if constexpr (again) {
        const bool in_place = std::find(inputs.begin(), inputs.end(), y) != inputs.end();
        if (!in_place) {
          math::SmallAngles angles;
          compute_all(angles);
          computed = angles.large == 0;
        }
      }
      if (!computed) compute_all();
      cpu::write<isa>(output + begin + first, count, blocks[result]);
    };
    cpu::for_each_block<T, cpu::small_block_size>(stop - begin, compute);
    begin = stop;
  }
}

}  // namespace elementwise

template <class F>
Status elementwise_cpu(const Call& call) {
  return visit_dtype<F::spec.dtypes>(call.outputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const elementwise::Extent extent = elementwise::extent_of<F>(call);
    constexpr Work work = elementwise::work_of<F>;
    constexpr bool converts = cpu::is_narrow<T> && work != Work::move;
    using Element = std::conditional_t<cpu::is_narrow<T> && !converts, std::uint16_t, T>;
    constexpr bool wide = converts || work == Work::much;
    return elementwise::visit_choice<F>(call, [&]<int choice>(std::integral_constant<int, choice>) {
      call.execution.parallel_for(
          extent.size, elementwise::cpu_grain, [&](std::int64_t begin, std::int64_t end) {
            cpu::vectorised<wide ? cpu::Width::full : cpu::Width::half>([&](auto isa) {
              elementwise::run_range<F, choice, Element, isa.value>(call, extent, begin, end);
            });
          });
      return Status();
    });
  });
}

}  // namespace cudarelu

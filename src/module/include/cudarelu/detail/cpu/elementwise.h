// The elementwise engine for the CPU.
#pragma once

#include <algorithm>
#include <array>

#include "cudarelu/detail/cpu/blocks.h"
#include "cudarelu/detail/cpu/piecewise.h"
#include "cudarelu/elementwise.h"

namespace cudarelu {
namespace elementwise {

/// The fewest elements for a thread: some microseconds of intensity.
inline constexpr std::int64_t cpu_grain = 32768;

/// Writes `count` elements of a row whose elements are repeated, from offset `at` on.
template <cpu::Isa isa, class T>
void repeat_elements(const T* row, std::int64_t at, std::int64_t count, std::int64_t inner_repeat,
                     cpu::Block<Compute<T>>& block) {
  cpu::Block<Compute<T>> one;
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t element = (at + i) / inner_repeat;
    const std::int64_t run = std::min(count - i, (element + 1) * inner_repeat - at - i);
    std::fill_n(block.data() + i, run, *cpu::read<isa>(row + element, 1, one));
    i += run;
  }
}

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
  const bool broadcasts = broadcast_inputs<F> != 0 && extent.inner_repeat > 1;
  while (begin < end) {
    const std::int64_t past = row_inputs<F> != 0 ? begin % extent.columns : 0;
    std::int64_t stop = std::min(end, begin + extent.columns - past);
    if (broadcasts) stop = std::min(stop, begin + cpu::block_size);
    const auto compute = [&](std::int64_t first, std::int64_t count) {
      cpu::prefetch_results(output + begin + first, count, end - begin - first);
      std::array<const C*, input_count<F>> inputs;
      for (int i = 0; i < input_count<F>; ++i) {
        const T* const x = static_cast<const T*>(call.inputs[i].data);
        if (is_broadcast<F>(i) && broadcasts) {
          repeat_elements<isa>(x, past + first, count, extent.inner_repeat, blocks[i]);
          inputs[i] = blocks[i].data();
        } else {
          inputs[i] = cpu::read<isa>(x + (is_row<F>(i) ? past : begin) + first, count, blocks[i]);
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
      if constexpr (requires { F::piecewise; } && std::is_same_v<C, float>) {
        static_assert(input_count<F> == 1 && attribute_count<F> == 0,
                      "a polynomial is of one number");
        cpu::evaluate_piecewise<isa>(F::piecewise, inputs[0], y, count);
        computed = true;
      } else if constexpr (again) {
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
    if constexpr (cpu::is_narrow<T>) {
      cpu::for_each_block<T, cpu::small_block_size>(stop - begin, compute);
    } else {
      for (std::int64_t first = 0; first < stop - begin; first += cpu::block_size) {
        compute(first, std::min(cpu::block_size, stop - begin - first));
      }
    }
    begin = stop;
  }
}

}  // namespace elementwise

template <class F>
Status elementwise_cpu(const Call& call) {
  return visit_dtype<F::spec.dtypes>(call.outputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const elementwise::Extent extent = elementwise::extent_of<F>(call);
    constexpr ArithmeticIntensity intensity = elementwise::intensity_of<F>;
    constexpr bool converts = cpu::is_narrow<T> && intensity != ArithmeticIntensity::none;
    using Element = std::conditional_t<cpu::is_narrow<T> && !converts, std::uint16_t, T>;
    constexpr bool wide = converts || intensity == ArithmeticIntensity::high;
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

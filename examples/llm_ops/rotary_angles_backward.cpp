#include "rotary_angles_backward.h"

#include <algorithm>
#include <array>

#include "cudarelu/rows.h"

namespace llm {

Status RotaryAnglesBackward::cpu(const Call& call) {
  if (Status status = check_rotary(call, call.inputs[1], call.inputs[2]); !status.ok())
    return status;
  const RotarySizes sizes(call.inputs[1], call.inputs[2]);
  const std::int64_t pairs = sizes.pairs;
  const bool halves = call.integer(0) == 0;
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    constexpr std::int64_t width = 64;  // pairs whose sums are kept at the same time
    const std::int64_t units = (pairs + width - 1) / width;
    const auto* const grad_y = static_cast<const T*>(call.inputs[0].data);
    const auto* const x = static_cast<const T*>(call.inputs[1].data);
    auto* const grad_cos = static_cast<T*>(call.outputs[0].data);
    auto* const grad_sin = static_cast<T*>(call.outputs[1].data);
    const auto sum = [&](std::int64_t unit) {
      const std::int64_t position = unit / units;
      const std::int64_t begin = unit % units * width;
      const std::int64_t count = std::min(width, pairs - begin);
      std::array<double, width> of_cos{};
      std::array<double, width> of_sin{};
      const auto add = [&](std::int64_t first, std::int64_t second, std::int64_t step) {
        for (std::int64_t i = 0; i < count; ++i, first += step, second += step) {
          const double a = C(load(x[first]));
          const double b = C(load(x[second]));
          const double grad_a = C(load(grad_y[first]));
          const double grad_b = C(load(grad_y[second]));
          of_cos[i] += grad_a * a + grad_b * b;
          of_sin[i] += grad_b * a - grad_a * b;
        }
      };
      for (std::int64_t matrix = 0; matrix < sizes.leading; ++matrix) {
        const std::int64_t row = (matrix * sizes.positions + position) * 2 * pairs;
        if (halves) {
          add(row + begin, row + begin + pairs, 1);
        } else {
          add(row + 2 * begin, row + 2 * begin + 1, 2);
        }
      }
      for (std::int64_t i = 0; i < count; ++i) {
        grad_cos[position * pairs + begin + i] = store<T>(static_cast<C>(of_cos[i]));
        grad_sin[position * pairs + begin + i] = store<T>(static_cast<C>(of_sin[i]));
      }
    };
    const std::int64_t terms = 2 * width * std::max<std::int64_t>(1, sizes.leading);
    call.execution.parallel_for(sizes.positions * units, std::max<std::int64_t>(1, 16384 / terms),
                                [&](std::int64_t begin, std::int64_t end) {
                                  cpu::vectorised<cpu::Width::full>([&] {
                                    for (std::int64_t unit = begin; unit < end; ++unit) sum(unit);
                                  });
                                });
    return Status();
  });
}

}  // namespace llm

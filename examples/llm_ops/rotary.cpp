#include "rotary.h"

#include "cudarelu/rows.h"

namespace llm {

Status Rotary::cpu(const Call& call) {
  if (Status status = check_rotary(call, call.inputs[0], call.inputs[1]); !status.ok())
    return status;
  const RotarySizes sizes(call.inputs[0], call.inputs[1]);
  const std::int64_t pairs = sizes.pairs;
  const bool halves = call.integer(0) == 0;
  const std::int64_t heads = call.inputs[0].shape.last(3)[0];
  const std::int64_t cos_step = rotary_angles_step(call, 1);
  const std::int64_t sin_step = rotary_angles_step(call, 2);
  const RotaryLayout of_x(call.inputs[0], call.strides.inputs);
  const RotaryLayout of_y(call.outputs[0], call.strides.outputs);
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    cpu::for_each_row<cpu::Width::full>(call, [&](std::int64_t offset) {
      const std::int64_t row = offset / (2 * pairs);
      const std::int64_t position = row % sizes.positions;
      const std::int64_t matrix = row / sizes.positions;
      const auto offset_in = [&](const RotaryLayout& layout) {
        return matrix / heads * layout.batch + matrix % heads * layout.head +
               position * layout.position;
      };
      const T* const x = static_cast<const T*>(call.inputs[0].data) + offset_in(of_x);
      const T* const cos = static_cast<const T*>(call.inputs[1].data) + position * cos_step;
      const T* const sin = static_cast<const T*>(call.inputs[2].data) + position * sin_step;
      T* const y = static_cast<T*>(call.outputs[0].data) + offset_in(of_y);
      const auto rotate = [&](std::int64_t i, std::int64_t first, std::int64_t second) {
        const auto a = load(x[first]);
        const auto b = load(x[second]);
        const auto c = load(cos[i]);
        const auto s = load(sin[i]);
        y[first] = store<T>(a * c - b * s);
        y[second] = store<T>(b * c + a * s);
      };
      if (halves) {
        cpu::for_each_index(pairs, [&](std::int64_t i) { rotate(i, i, i + pairs); });
      } else {
        cpu::for_each_index(pairs, [&](std::int64_t i) { rotate(i, 2 * i, 2 * i + 1); });
      }
    });
    return Status();
  });
}

}  // namespace llm

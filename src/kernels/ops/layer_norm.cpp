#include "ops/layer_norm.h"

#include "cudarelu/cpu/moments.h"

namespace cudarelu::ops {

Status LayerNorm::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const std::int64_t columns = call.inputs[0].shape.back();
    const auto input = [&](std::size_t i) {
      return call.inputs[i].present ? static_cast<const T*>(call.inputs[i].data) : nullptr;
    };
    const T* const weight = input(1);
    const T* const bias = input(2);
    cpu::for_each_row<cpu::Width::full>(call, [&](auto tag, std::int64_t row) {
      constexpr cpu::Isa isa = decltype(tag)::value;
      const T* x = static_cast<const T*>(call.inputs[0].data) + row;
      T* y = static_cast<T*>(call.outputs[0].data) + row;
      const cpu::Normaliser<C> normalised = cpu::normaliser_of<isa>(x, columns, call.real(0));
      cpu::Block<C> block;
      cpu::Block<C> weight_block;
      cpu::Block<C> bias_block;
      cpu::for_each_block<T, cpu::small_block_size>(
          columns, [&](std::int64_t first, std::int64_t count) {
            const C* const values = cpu::read<isa>(x + first, count, block);
            C* const results = cpu::target(y + first, block);
            const auto write = [&](const auto& value) {
              cpu::for_each_index_of_small_block<T>(count,
                                                    [&](std::int64_t i) { results[i] = value(i); });
            };
            const C* const w =
                weight == nullptr ? nullptr : cpu::read<isa>(weight + first, count, weight_block);
            const C* const b =
                bias == nullptr ? nullptr : cpu::read<isa>(bias + first, count, bias_block);
            if (w != nullptr && b != nullptr) {
              write([&](std::int64_t i) { return normalised(values[i]) * w[i] + b[i]; });
            } else if (w != nullptr) {
              write([&](std::int64_t i) { return normalised(values[i]) * w[i]; });
            } else if (b != nullptr) {
              write([&](std::int64_t i) { return normalised(values[i]) + b[i]; });
            } else {
              write([&](std::int64_t i) { return normalised(values[i]); });
            }
            cpu::write<isa>(y + first, count, block);
          });
    });
    return Status();
  });
}

}  // namespace cudarelu::ops

#include "ops/softmax_backward.h"

#include "cudarelu/detail/cpu/rows.h"

namespace cudarelu::ops {
namespace {

template <class T>
void gradient_of_short_rows(const Call& call) {
  using C = Compute<T>;
  const std::int64_t columns = call.inputs[0].shape.back();
  const std::array input{static_cast<const T*>(call.inputs[0].data),
                         static_cast<const T*>(call.inputs[1].data)};
  auto* const output = static_cast<T*>(call.outputs[0].data);
  cpu::for_parts_of_rows<cpu::sum_width<T>>(
      call, [&](auto tag, std::int64_t begin, std::int64_t end) {
        cpu::for_blocks_of_rows<decltype(tag)::value>(
            input, output, begin, end, columns,
            [&](const auto& inputs, C* results, std::int64_t count) {
              const C* const g = inputs[0];
              const C* const p = inputs[1];
              for (std::int64_t i = 0; i < count; i += columns) {
                const C dot = static_cast<C>(
                    cpu::sum_of_few(columns, [&](std::int64_t j) { return g[i + j] * p[i + j]; }));
                cpu::for_each_index(
                    columns, [&](std::int64_t j) { results[i + j] = p[i + j] * (g[i + j] - dot); });
              }
            });
      });
}

}  // namespace

Status SoftmaxBackward::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const std::int64_t columns = call.inputs[0].shape.back();
    if (columns <= cpu::short_row) {
      gradient_of_short_rows<T>(call);
      return Status();
    }
    cpu::for_each_row<cpu::sum_width<T>>(call, [&](auto tag, std::int64_t row) {
      constexpr cpu::Isa isa = decltype(tag)::value;
      const T* grad_y = static_cast<const T*>(call.inputs[0].data) + row;
      const T* y = static_cast<const T*>(call.inputs[1].data) + row;
      T* grad_x = static_cast<T*>(call.outputs[0].data) + row;
      cpu::Block<C> grad_y_block;
      cpu::Block<C> y_block;
      cpu::Sum sum;
      cpu::for_each_block<T, cpu::sum_block_size>(
          columns, [&](std::int64_t first, std::int64_t count) {
            const C* const g = cpu::read<isa>(grad_y + first, count, grad_y_block);
            const C* const p = cpu::read<isa>(y + first, count, y_block);
            sum.add_products(
                count, [&](std::int64_t i) { return g[i]; }, [&](std::int64_t i) { return p[i]; });
          });
      const C dot = static_cast<C>(sum.total());
      cpu::for_each_block<T, cpu::small_block_size>(
          columns, [&](std::int64_t first, std::int64_t count) {
            const C* const g = cpu::read<isa>(grad_y + first, count, grad_y_block);
            const C* const p = cpu::read<isa>(y + first, count, y_block);
            C* const results = cpu::target(grad_x + first, y_block);
            cpu::for_each_index_of_small_block<T>(
                count, [&](std::int64_t i) { results[i] = p[i] * (g[i] - dot); });
            cpu::write<isa>(grad_x + first, count, y_block);
          });
    });
    return Status();
  });
}

}  // namespace cudarelu::ops

#include "ops/softmax.h"

#include "cudarelu/cpu/exponential.h"
#include "cudarelu/cpu/rows.h"

namespace cudarelu::ops {

Status Softmax::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const std::int64_t columns = call.inputs[0].shape.back();
    cpu::for_each_row<cpu::Width::full>(call, [&](auto isa, std::int64_t row) {
      const T* x = static_cast<const T*>(call.inputs[0].data) + row;
      T* y = static_cast<T*>(call.outputs[0].data) + row;
      // Keeps the powers; without conversion they are in the output. Those at the end of a long row
      // are computed again.
      constexpr std::int64_t kept = cpu::is_narrow<T> ? 16 : 1;
      std::array<cpu::Block<C>, kept> blocks;
      if (columns <= cpu::short_row) {
        const C* const values = cpu::read(x, columns, blocks[0]);
        const C base = cpu::maximum_of_few(values, columns);
        C* const results = cpu::target(y, blocks[0]);
        cpu::exponentials<isa.value>(values, base, results, columns);
        const double sum = cpu::sum_of_few(columns, [&](std::int64_t i) { return results[i]; });
        const C scale = static_cast<C>(1 / sum);
        cpu::for_each_index(columns, [&](std::int64_t i) { results[i] *= scale; });
        cpu::write(y, columns, blocks[0]);
        return;
      }
      const auto block_of = [&](std::int64_t first) -> cpu::Block<C>& {
        return blocks[std::min(first / cpu::block_size, kept - 1)];
      };

      cpu::Maximum<C> maximum;
      cpu::for_each_block<T>(columns, [&](std::int64_t first, std::int64_t count) {
        maximum.add(cpu::read(x + first, count, blocks[0]), count);
      });
      const C base = maximum.value();

      const auto powers = [&](std::int64_t first, std::int64_t count) {
        const C* const values = cpu::read(x + first, count, block_of(first));
        C* const results = cpu::target(y + first, block_of(first));
        cpu::exponentials<isa.value>(values, base, results, count);
        return results;
      };
      cpu::Sum sum;
      cpu::for_each_block<T>(columns, [&](std::int64_t first, std::int64_t count) {
        const C* const results = powers(first, count);
        sum.add(count, [&](std::int64_t i) { return results[i]; });
      });
      const C scale = static_cast<C>(1 / sum.total());

      cpu::for_each_block<T>(columns, [&](std::int64_t first, std::int64_t count) {
        const bool is_long = cpu::is_narrow<T> && columns > kept * cpu::block_size;
        if (is_long && first >= (kept - 1) * cpu::block_size) powers(first, count);
        C* const results = cpu::target(y + first, block_of(first));
        cpu::for_each_index(count, [&](std::int64_t i) { results[i] *= scale; });
        cpu::write(y + first, count, block_of(first));
      });
    });
    return Status();
  });
}

}  // namespace cudarelu::ops

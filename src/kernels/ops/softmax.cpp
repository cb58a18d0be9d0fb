#include "ops/softmax.h"

#include "cudarelu/detail/cpu/exponential.h"
#include "cudarelu/detail/cpu/rows.h"

namespace cudarelu::ops {
namespace {

template <cpu::Isa isa, class C>
void softmax_of_few(const C* x, C* y, std::int64_t columns) {
  cpu::exponentials<isa>(x, cpu::maximum_of_few(x, columns), y, columns);
  const double sum = cpu::sum_of_few(columns, [&](std::int64_t i) { return y[i]; });
  const C scale = static_cast<C>(1 / sum);
  cpu::for_each_index(columns, [&](std::int64_t i) { y[i] *= scale; });
}

template <class T>
void softmax_of_short_rows(const Call& call) {
  const std::int64_t columns = call.inputs[0].shape.back();
  const std::array input{static_cast<const T*>(call.inputs[0].data)};
  auto* const output = static_cast<T*>(call.outputs[0].data);
  cpu::for_parts_of_rows<cpu::Width::full>(
      call, [&](auto tag, std::int64_t begin, std::int64_t end) {
        constexpr cpu::Isa isa = decltype(tag)::value;
        cpu::for_blocks_of_rows<isa>(input, output, begin, end, columns,
                                     [&](const auto& inputs, auto* results, std::int64_t count) {
                                       for (std::int64_t i = 0; i < count; i += columns) {
                                         softmax_of_few<isa>(inputs[0] + i, results + i, columns);
                                       }
                                     });
      });
}

}  // namespace

Status Softmax::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const std::int64_t columns = call.inputs[0].shape.back();
    if (columns <= cpu::short_row) {
      softmax_of_short_rows<T>(call);
      return Status();
    }
    cpu::for_each_row<cpu::Width::full>(call, [&](auto isa, std::int64_t row) {
      const T* x = static_cast<const T*>(call.inputs[0].data) + row;
      T* y = static_cast<T*>(call.outputs[0].data) + row;
      // Keeps the powers; without conversion they are in the output. Those at the end of a long row
      // are computed again.
      constexpr std::int64_t kept = cpu::is_narrow<T> ? 16 : 1;
      std::array<cpu::Block<C>, kept> blocks;
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
